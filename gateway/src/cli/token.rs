//! `runcast token`.

use std::process::ExitCode;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::{Subcommand, ValueEnum};
use rand::RngCore as _;
use runcast_config::{Auth, Right, Token};
use sha2::{Digest as _, Sha256};

use super::{EXIT_CONFIG, fail};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a token: prints it, and the entry for the configuration, which holds only its hash
    ///
    /// The token is the first line and is shown this once. The second line belongs into `tokens = [ … ]` of [auth].
    New(New),
}

#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// What it is called in the configuration
    name: String,
    /// What it is good for, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "watch")]
    rights: Vec<Word>,
    /// Good for the runs whose customer_id this is
    #[arg(long)]
    subject: Option<String>,
    /// Good for this run, or with `*` at its end for all that begin so; may be said again. Without this and --subject: all runs
    #[arg(long = "run", value_name = "ID")]
    runs: Vec<String>,
    /// Until when, as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Word {
    Watch,
    Ingest,
    Control,
}

impl Command {
    pub fn main(self) -> ExitCode {
        let Self::New(new) = self;
        let mut key = [0; 32];
        rand::rng().fill_bytes(&mut key);
        let text = format!("rc_{}", URL_SAFE_NO_PAD.encode(key));
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let mut rights: Vec<Right> = Vec::new();
        for right in new.rights.into_iter().map(Right::from) {
            if !rights.contains(&right) {
                rights.push(right);
            }
        }
        let token = Token {
            name: new.name,
            hash: Some(format!("sha256:{}", hash.map(|byte| format!("{byte:02x}")).concat())),
            rights,
            subject: new.subject,
            runs: new.runs,
            expires_at: new.expires_at,
            ..Token::default()
        };
        let auth = Auth { tokens: vec![token], ..Auth::default() };
        match auth.checked() {
            Ok(auth) => {
                println!("{text}\n{}", entry(&auth.tokens[0]));
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error, EXIT_CONFIG),
        }
    }
}

/// The entry as one line of TOML.
fn entry(token: &Token) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let list = |items: &[String]| format!("[{}]", items.join(", "));
    let mut members = vec![format!("name = {}", quoted(&token.name))];
    members.extend(token.hash.as_deref().map(|hash| format!("hash = {}", quoted(hash))));
    let rights: Vec<String> = token.rights.iter().map(|right| quoted(right.word())).collect();
    members.push(format!("rights = {}", list(&rights)));
    members.extend(token.subject.as_deref().map(|subject| format!("subject = {}", quoted(subject))));
    if !token.runs.is_empty() {
        let runs: Vec<String> = token.runs.iter().map(|run| quoted(run)).collect();
        members.push(format!("runs = {}", list(&runs)));
    }
    members.extend(token.expires_at.as_deref().map(|at| format!("expires_at = {}", quoted(at))));
    format!("{{ {} }}", members.join(", "))
}

impl From<Word> for Right {
    fn from(word: Word) -> Self {
        match word {
            Word::Watch => Self::Watch,
            Word::Ingest => Self::Ingest,
            Word::Control => Self::Control,
        }
    }
}
