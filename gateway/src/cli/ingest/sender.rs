//! Sending the buffer's lines, as often as it takes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::stream;
use indicatif::ProgressBar;
use reqwest::{Client, Response, StatusCode};
use runcast_translators::event::RunId;
use serde::Deserialize;
use tokio::time::sleep;

use super::buffer::{Buffer, Next};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How often the gateway is asked what it has kept.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After so long without anything kept of a full buffer that is told.
const TELL_FULL_AFTER: Duration = Duration::from_secs(10);

pub(super) struct Sender {
    client: Client,
    base: String,
    token: Option<String>,
    session: String,
    give_up_after: Duration,
    quiet: bool,
    /// The gateway could not be reached last time.
    lost: AtomicBool,
}

/// Why one attempt ended.
enum Failure {
    /// Worth another try.
    Lost(String),
    /// The gateway has said no, and which of its codes that is.
    Final { code: String, what: String },
}

/// Whether a full buffer gets any emptier.
#[derive(Default)]
struct Stuck {
    /// Since when it is full with nothing more kept, and how much was kept then.
    since: Option<(Instant, u64)>,
    told: bool,
}

impl Stuck {
    /// How long it has been so.
    fn look(&mut self, is_full: bool, kept: u64) -> Option<Duration> {
        match self.since {
            Some((_, before)) if is_full && before == kept => {}
            _ if is_full => self.since = Some((Instant::now(), kept)),
            _ => self.since = None,
        }
        self.since.map(|(since, _)| since.elapsed())
    }
}

#[derive(Debug, Deserialize)]
struct Progress {
    session: String,
    next_line: u64,
}

impl Sender {
    pub fn new(
        url: &str,
        token: Option<&str>,
        run: &RunId,
        session: &str,
        give_up_after: Duration,
        quiet: bool,
    ) -> Result<Self, String> {
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| format!("cannot make a client: {error}"))?;
        let mut base = reqwest::Url::parse(url).map_err(|error| format!("--url {url}: {error}"))?;
        if !["http", "https"].contains(&base.scheme()) {
            return Err(format!("--url {url}: only http and https are spoken"));
        }
        base.path_segments_mut().map_err(|()| format!("--url {url}: this is no address of a server"))?.pop_if_empty().extend([
            "v1",
            "runs",
            run.as_str(),
        ]);
        Ok(Self {
            client,
            base: base.into(),
            token: token.map(Into::into),
            session: session.into(),
            give_up_after,
            quiet,
            lost: AtomicBool::new(false),
        })
    }

    /// Whether the run would be taken, as far as can be said now. A gateway that cannot be reached may come back.
    pub async fn ask(&self) -> Result<(), String> {
        match self.progress().await {
            Ok(_) => Ok(()),
            Err(Failure::Final { what, .. }) => Err(what),
            Err(Failure::Lost(what)) => {
                self.tell_lost(&what);
                Ok(())
            }
        }
    }

    /// One line when the gateway is lost, and one when it is back.
    fn tell_lost(&self, what: &str) {
        if !self.lost.swap(true, Ordering::Relaxed) && !self.quiet {
            eprintln!("runcast: {what}; lines are held and it is tried again");
        }
    }

    fn tell_back(&self) {
        if self.lost.swap(false, Ordering::Relaxed) && !self.quiet {
            eprintln!("runcast: the gateway is back");
        }
    }

    /// Sends everything until the source has ended and all of it is kept.
    pub async fn send(&self, buffer: &Arc<Buffer>, bar: &ProgressBar) -> Result<(), String> {
        self.retry(bar, || self.attempt(buffer, bar)).await
    }

    /// Tells that the source is over.
    pub async fn end(&self, exit_status: Option<i32>) -> Result<(), String> {
        let body = serde_json::json!({"session": self.session, "exit_status": exit_status});
        self.retry(&ProgressBar::hidden(), || async {
            let answer = self.request(reqwest::Method::POST, "/end").json(&body).timeout(ANSWER_TIMEOUT).send().await;
            let answer = answer.map_err(|error| Failure::Lost(plain(&error)))?;
            match answer.status() {
                status if status.is_success() => {
                    self.tell_back();
                    Ok(())
                }
                status => {
                    let failure = failure(answer).await;
                    // Nothing to end: no line made an event. Or the run was settled by an earlier try.
                    let is_settled = matches!(&failure, Failure::Final { code, .. } if code == "run_settled");
                    let done = status == StatusCode::NOT_FOUND || is_settled;
                    if done { Ok(()) } else { Err(failure) }
                }
            }
        })
        .await
    }

    async fn retry<F: Future<Output = Result<(), Failure>>>(
        &self,
        bar: &ProgressBar,
        mut attempt: impl FnMut() -> F,
    ) -> Result<(), String> {
        let mut wait = RETRY_MIN;
        let mut lost_since: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            let what = match attempt().await {
                Ok(()) => return Ok(()),
                Err(Failure::Final { what, .. }) => return Err(what),
                Err(Failure::Lost(what)) => what,
            };
            if !self.lost.load(Ordering::Relaxed) {
                // It was reached in between.
                (wait, lost_since) = (RETRY_MIN, None);
            }
            let since = *lost_since.get_or_insert(begun);
            if since.elapsed() > self.give_up_after {
                return Err(format!("gave up after {} s without the gateway: {what}", self.give_up_after.as_secs()));
            }
            self.tell_lost(&what);
            bar.set_message(format!("{what}; trying again"));
            sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// One connection: asks from where to go on, streams from there, waits for the answer.
    async fn attempt(&self, buffer: &Arc<Buffer>, bar: &ProgressBar) -> Result<(), Failure> {
        let wanted = self.progress().await?;
        self.tell_back();
        buffer.trim(wanted);
        let from = buffer.resume_at(wanted);
        let body = stream::unfold((buffer.clone(), from), |(buffer, at)| async move {
            match buffer.wait(at).await {
                Next::Lines(piece, count) => Some((Ok::<_, std::io::Error>(piece), (buffer, at + count))),
                // Breaks the request off; the next one asks from where to go on.
                Next::Gone => Some((Err(std::io::Error::other("these lines are kept already")), (buffer, at))),
                Next::Wait | Next::End => None,
            }
        });
        let path = format!("/events?session={}&from={from}", encode(&self.session));
        let request = self.request(reqwest::Method::POST, &path).header("content-type", "application/x-ndjson");
        let sending = request.body(reqwest::Body::wrap_stream(body)).send();
        tokio::pin!(sending);
        let mut stuck = Stuck::default();
        let answer = loop {
            tokio::select! {
                answer = &mut sending => break answer.map_err(|error| Failure::Lost(plain(&error)))?,
                () = sleep(ASK_EVERY) => {
                    // What is kept need not be held. That nobody answers now is for the other connection to find out.
                    if let Ok(kept) = self.progress().await {
                        buffer.trim(kept);
                        bar.set_message(format!("{} lines read, {kept} kept", buffer.count()));
                        if let Some(waited) = stuck.look(buffer.is_full(), kept) {
                            self.check_stuck(waited, &mut stuck.told, buffer.bytes_max())?;
                        }
                    }
                }
            }
        };
        if !answer.status().is_success() {
            return Err(failure(answer).await);
        }
        Ok(())
    }

    /// What is said, and done in the end, while the source waits for room and nothing of what is held gets kept.
    fn check_stuck(&self, waited: Duration, told: &mut bool, bytes_max: usize) -> Result<(), Failure> {
        let why = "the gateway keeps whole messages, and this may be one that is longer";
        if waited > self.give_up_after {
            let what = format!(
                "gave up: {bytes_max} bytes are sent (--buffer-bytes-max) and nothing of them was kept for {} s; {why}: \
                 give more room",
                self.give_up_after.as_secs()
            );
            return Err(Failure::Final { code: String::new(), what });
        }
        if waited > TELL_FULL_AFTER && !std::mem::replace(told, true) && !self.quiet {
            eprintln!(
                "runcast: the source waits: {bytes_max} bytes are held (--buffer-bytes-max) and none of them is kept; {why}"
            );
        }
        Ok(())
    }

    /// The line that the gateway wants next.
    async fn progress(&self) -> Result<u64, Failure> {
        let answer = self.request(reqwest::Method::GET, "/ingest").timeout(ANSWER_TIMEOUT).send().await;
        let answer = answer.map_err(|error| Failure::Lost(plain(&error)))?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(0),
            status if status.is_success() => {
                let progress: Progress = answer.json().await.map_err(|error| Failure::Lost(plain(&error)))?;
                if progress.session != self.session {
                    let what = "the run belongs to another session: choose another --run, or give its --session".into();
                    return Err(Failure::Final { code: "run_in_use".into(), what });
                }
                Ok(progress.next_line)
            }
            _ => Err(failure(answer).await),
        }
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// What an answer that is no success means.
async fn failure(answer: Response) -> Failure {
    #[derive(Deserialize)]
    struct Body {
        error: Error,
    }
    #[derive(Deserialize)]
    struct Error {
        code: String,
        message: String,
    }
    let status = answer.status();
    let body = answer.text().await.unwrap_or_default();
    let (code, what) = match serde_json::from_str::<Body>(&body) {
        Ok(body) => (body.error.code, body.error.message),
        Err(_) => (String::new(), format!("the gateway answered {status}")),
    };
    match status {
        _ if code == "body_cut" => Failure::Lost(what),
        status if status.is_server_error() => Failure::Lost(what),
        _ => Failure::Final { code, what },
    }
}

/// The innermost reason: "connection refused" says more than "error sending request".
fn plain(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    format!("no connection to the gateway: {inner}")
}

fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}
