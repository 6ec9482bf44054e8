//! What clients of `sdk.v1` may ask of a bridge: they are passed through to it.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use runcast_translators::{
    bridge::{Codec, Message},
    event::{RunId, Seq},
    goodbye::RpcCode,
    json::Json,
};
use tokio::sync::mpsc;

use crate::budget::Held;

/// A bridge that clients can be passed through to.
#[async_trait]
pub trait Bridge: Send + Sync + 'static {
    /// One call and its one answer, as the bridge gives it.
    async fn call(&self, call: Call) -> Result<Bytes, Failure>;

    /// A call that is answered by a stream; its messages as they come.
    async fn open(&self, call: Call) -> Result<Answers, Failure>;

    /// Begins a turn. The run is written into the log from then on, whatever becomes of whoever asked. Returns when the log
    /// has something of it.
    async fn send(&self, call: Call) -> Result<Sent, Failure>;

    /// Asks the bridge to stop a run; false when it has no such run. It is not asked for the run before: that would change
    /// what it can do.
    async fn cancel(&self, run: &RunId, agent: &str) -> Result<bool, Failure>;

    /// The runs of an agent, as the bridge tells them; none while one of them is being sent from here, because asking would
    /// change it.
    async fn list_runs(&self, agent: &str) -> Result<Vec<Json>, Failure>;
}

/// A call as a client made it.
#[derive(Clone, Debug)]
pub struct Call {
    /// `SdkAgentService/CreateAgent`.
    pub method: String,
    pub codec: Codec,
    /// The request message; the answers are in the same codec.
    pub body: Bytes,
}

/// The messages of a stream. The error is its last item.
pub type Answers = BoxStream<'static, Result<Bytes, Failure>>;

/// A turn that has begun.
#[derive(Debug)]
pub struct Sent {
    pub run: RunId,
    /// What is only told live, deltas and steps, where the request asked for them.
    pub live: mpsc::Receiver<LiveUpdate>,
}

/// A delta or a step, with its place among the run's events.
#[derive(Debug)]
pub struct LiveUpdate {
    /// It comes behind this event.
    pub after: Seq,
    pub message: Message,
    /// Given back when it is taken.
    pub held: Held,
}

/// An error as a bridge gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: RpcCode,
    pub message: String,
    pub details: Vec<Detail>,
    /// The bridge itself has not answered: it is not reached, or what came was no answer.
    pub is_lost: bool,
}

/// What an error says beside its code and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The name of the message: `sdk.v1.SdkErrorDetails`.
    pub kind: String,
    /// Its protobuf.
    pub value: Bytes,
    /// The same as JSON, where it is known.
    pub debug: Option<Json>,
}

impl Failure {
    /// An error of ours or of the bridge without details.
    pub fn new(code: RpcCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), is_lost: false }
    }

    /// The bridge is not reached.
    pub fn lost(why: impl std::fmt::Display) -> Self {
        let message = format!("the bridge cannot be reached: {why}");
        Self { is_lost: true, ..Self::new(RpcCode::Unavailable, message) }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_lost { f.write_str(&self.message) } else { write!(f, "{}: {}", self.code.name(), self.message) }
    }
}
