//! What clients may ask of daemons beside what they watch: to make a node, and to revive one.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use runcast_translators::event::RunId;

/// What a daemon has answered, as the client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    /// JSON.
    pub body: Bytes,
}

/// A daemon that takes what clients post.
#[async_trait]
pub trait NodeControl: Send + Sync + 'static {
    /// The session of its runs in the log.
    fn session(&self) -> String;

    /// Hands on a prompt to a new node.
    ///
    /// # Errors
    /// Why the daemon cannot be asked now.
    async fn create(&self, body: Bytes) -> Result<Answer, String>;

    /// Lets a node run again.
    ///
    /// # Errors
    /// Why the daemon cannot be asked now.
    async fn revive(&self, run: &RunId, body: Bytes) -> Result<Answer, String>;
}

/// All daemons, in the order of the configuration.
#[derive(Clone, Default)]
pub struct NodeControls(Arc<[Arc<dyn NodeControl>]>);

impl NodeControls {
    pub fn new(daemons: Vec<Arc<dyn NodeControl>>) -> Self {
        Self(daemons.into())
    }

    /// Makes a node, at the first daemon. `None` without one.
    pub async fn create(&self, body: Bytes) -> Option<Result<Answer, String>> {
        Some(self.0.first()?.create(body).await)
    }

    /// Revives a node at the daemon that it belongs to; `session` is that of its run. A run that the log has not is
    /// looked for at each of them. `None` where no daemon can have it.
    pub async fn revive(&self, run: &RunId, session: Option<&str>, body: Bytes) -> Option<Result<Answer, String>> {
        let mut last = None;
        for daemon in self.0.iter().filter(|daemon| session.is_none_or(|session| daemon.session() == session)) {
            let answer = daemon.revive(run, body.clone()).await;
            if !matches!(&answer, Ok(answer) if answer.status == StatusCode::NOT_FOUND) {
                return Some(answer);
            }
            last = Some(answer);
        }
        last
    }
}
