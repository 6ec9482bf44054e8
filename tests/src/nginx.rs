//! A real nginx before a server, on free ports and with a folder of its own.

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{LIMIT, tools::installed};

/// Stopped when it is dropped.
pub struct Nginx {
    child: Child,
    /// `http://127.0.0.1:PORT`, where it speaks HTTP/1.1,
    pub base: String,
    /// and where it speaks HTTP/2. Without TLS a port of nginx speaks one of both.
    pub base_http2: String,
    folder: tempfile::TempDir,
}

/// As it is shipped, but for where it may write: nothing of it is ours to choose.
fn frame(folder: &str, inside: &str) -> String {
    let places: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n\
         http {{\naccess_log off;\n{places}{inside}\n}}\n"
    )
}

/// What nginx needs to be told for WebSocket and gRPC to get through at all; everything else is its default. `server`: where
/// runcast is, `http://127.0.0.1:PORT`.
pub fn defaults(server: &str) -> String {
    let address = server.trim_start_matches("http://");
    format!(
        "server {{\n  listen HTTP1;\n  location / {{ proxy_pass http://{address}; }}\n  location ~ /stream$ {{\n    proxy_pass \
         http://{address};\n    proxy_http_version 1.1;\n    proxy_set_header Upgrade $http_upgrade;\n    proxy_set_header \
         Connection upgrade;\n  }}\n}}\nserver {{\n  listen HTTP2 http2;\n  location / {{ grpc_pass grpc://{address}; }}\n}}"
    )
}

impl Nginx {
    /// With what stands in its `http` block; `HTTP1` and `HTTP2` there are the two addresses that it is to listen at.
    pub fn start(inside: &str) -> Option<Self> {
        let program = installed("nginx", "nginx-light")?;
        let deadline = Instant::now() + LIMIT;
        loop {
            match Self::try_start(&program, inside) {
                Ok(nginx) => return Some(nginx),
                // Somebody else has taken one of the ports.
                Err(said) if said.contains("Address already in use") && Instant::now() < deadline => {}
                Err(said) => panic!("nginx does not start:\n{said}"),
            }
        }
    }

    fn try_start(program: &PathBuf, inside: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [http1, http2] = listeners.map(|listener| listener.local_addr().expect("an address").to_string());
        let inside = inside.replace("HTTP1", &http1).replace("HTTP2", &http2);
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, frame(folder.path().to_str().expect("UTF-8"), &inside)).expect("written");
        let mut child = Command::new(program).arg("-c").arg(&file).stderr(Stdio::null()).spawn().expect("nginx runs");
        let deadline = Instant::now() + LIMIT;
        while [&http1, &http2].into_iter().any(|address| TcpStream::connect(address).is_err()) {
            let has_ended = child.try_wait().expect("a child").is_some();
            if has_ended || Instant::now() > deadline {
                let _ = child.kill();
                return Err(std::fs::read_to_string(folder.path().join("error.log")).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { child, base: format!("http://{http1}"), base_http2: format!("http://{http2}"), folder })
    }

    /// What it has complained of.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("nginx has said:\n{}", self.said());
        }
    }
}
