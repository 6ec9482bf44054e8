//! Writes the seeds of every target into `FOLDER/TARGET/`: `seeds FOLDER`.

use std::{fs, path::PathBuf};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("seeds FOLDER"));
    for (target, _) in runcast_fuzz::targets::TARGETS {
        fs::create_dir_all(folder.join(target))?;
        for (number, seed) in runcast_fuzz::seeds::seeds(target).iter().enumerate() {
            fs::write(folder.join(target).join(format!("seed-{number}")), seed)?;
        }
        println!("{target}");
    }
    Ok(())
}
