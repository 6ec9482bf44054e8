//! A pgbouncer that shares connections between transactions, as they stand before many databases.

use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use super::{Database, program_of};

/// A running pgbouncer. It is killed when this is dropped.
pub struct Bouncer {
    child: Child,
    folder: PathBuf,
}

/// The port names its socket.
const PORT: u16 = 6432;

impl Bouncer {
    /// `None` where it is not installed. CI never does without.
    pub fn before(database: &Database) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(Path::new).into_iter().find(|path| path.exists());
        assert!(program.is_some() || std::env::var_os("CI").is_none(), "pgbouncer is not installed (apt-get install pgbouncer)");
        let Some(program) = program else {
            eprintln!("left out: pgbouncer is not installed (apt-get install pgbouncer)");
            return None;
        };
        let folder = database.folder().to_owned();
        let socket = folder.display();
        let settings = format!(
            "[databases]\npostgres = host={socket} port={} user=runcast\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n\
             unix_socket_dir = {socket}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nlogfile = {socket}/bouncer.log\n",
            super::PORT
        );
        let path = folder.join("bouncer.ini");
        std::fs::write(&path, settings).expect("written");
        database.give(&path);
        let mut command = program_of(program, database.user);
        let child = command.arg("-q").arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let bouncer = Self { child, folder };
        let socket = bouncer.folder.join(format!(".s.PGSQL.{PORT}"));
        let begun = std::time::Instant::now();
        while !socket.exists() {
            assert!(begun.elapsed() < crate::LIMIT, "pgbouncer does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(bouncer)
    }

    pub fn url(&self) -> String {
        format!("host={} port={PORT} user=runcast dbname=postgres", self.folder.display())
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
