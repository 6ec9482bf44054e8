//! A unix socket for clients: whoever may open its file is let in.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// A listener whose file goes with it.
pub struct UnixDoor {
    pub listener: UnixListener,
    path: PathBuf,
}

impl UnixDoor {
    /// Makes the socket's file with its mode, at once: nobody can open it before. One that nobody listens to any more is
    /// replaced.
    pub async fn open(path: &Path, mode: u32) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of this name that is no socket"));
            }
            Ok(_) if UnixStream::connect(path).await.is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
            }
            _ => {}
        }
        let mut private = path.as_os_str().to_owned();
        private.push(format!(".{}", std::process::id()));
        let private = PathBuf::from(private);
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let made = Self::make(&private.join("socket"), path, mode);
        let _ = fs::remove_dir_all(&private);
        made
    }

    fn make(first: &Path, path: &Path, mode: u32) -> io::Result<Self> {
        let listener = UnixListener::bind(first)?;
        fs::set_permissions(first, fs::Permissions::from_mode(mode))?;
        fs::rename(first, path)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for UnixDoor {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_has_its_mode_and_replaces_only_one_that_is_dead() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let door = UnixDoor::open(&path, 0o600).await.expect("opened");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(UnixDoor::open(&path, 0o600).await.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        drop(door);
        assert!(!path.exists());
        // As a process leaves it that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let door = UnixDoor::open(&path, 0o666).await.expect("opened");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o666);
        drop(door);
        fs::write(&path, "precious").expect("written");
        assert!(UnixDoor::open(&path, 0o600).await.is_err());
        assert_eq!(fs::read(&path).expect("there"), b"precious");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing else is left");
    }
}
