//! A run by its id, and the ways to look at it.

use std::time::Duration;

use reqwest::Method;
use runcast_translators::event::RunId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Client, Error, MessageStream, NodeStream, RunObject, RunResult, StatusListener, StepPage, Watch, WatchFrom,
    patience::Patience,
};

/// A run, by its id. Nothing that is done here changes it. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Run {
    client: Client,
    id: RunId,
}

impl Run {
    pub(crate) fn new(client: Client, id: RunId) -> Self {
        Self { client, id }
    }

    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The run as it is now.
    pub async fn get(&self) -> Result<RunObject, Error> {
        self.client.json(self.client.get(&["v1", "agents", "runs", self.id()])).await
    }

    /// One page of its steps, at most `limit` (the server's own limit when not given).
    pub async fn steps(&self, from: &WatchFrom, limit: Option<u32>) -> Result<StepPage, Error> {
        let mut url = self.client.url(&["v1", "agents", "runs", self.id(), "steps"]);
        match from {
            WatchFrom::Start => {}
            WatchFrom::Since(since) => drop(url.query_pairs_mut().append_pair("since", &since.to_string())),
            WatchFrom::Cursor(cursor) => drop(url.query_pairs_mut().append_pair("cursor", cursor)),
        }
        if let Some(limit) = limit {
            url.query_pairs_mut().append_pair("limit", &limit.to_string());
        }
        self.client.json(self.client.request(Method::GET, url)).await
    }

    /// Its steps and changes over WebSocket.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), runcast_client::Error> {
    /// use runcast_client::{Client, WatchFrom};
    ///
    /// let mut frames = Client::new("http://127.0.0.1:8080")?.run("fix-1")?.watch(WatchFrom::Start);
    /// while let Some(frame) = frames.next().await {
    ///     for step in frame?.steps() {
    ///         println!("{}: {}", step.step_index, step.data);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, from: WatchFrom) -> Watch {
        Watch::new(self.client.clone(), &self.id, from)
    }

    /// Its messages over Connect, from the first one on: the same for each kind of upstream.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), runcast_client::Error> {
    /// use runcast_client::{Client, MessageKind};
    ///
    /// let run = Client::new("http://127.0.0.1:8080")?.run("fix-1")?;
    /// let mut messages = run.stream();
    /// while let Some(message) = messages.next().await {
    ///     if let MessageKind::Sdk { kind, message } = message?.kind {
    ///         println!("{kind}: {message}");
    ///     }
    /// }
    /// println!("{}", run.wait().await?.status);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(&self) -> MessageStream {
        self.stream_after(None)
    }

    /// The same, behind the message that had this offset.
    pub fn stream_after(&self, offset: Option<String>) -> MessageStream {
        MessageStream::new(self.client.clone(), self.id.clone(), offset)
    }

    /// The same run as a node.
    pub fn events(&self, after: Option<u64>) -> NodeStream {
        NodeStream::new(self.client.clone(), &self.id, after)
    }

    /// Waits until the run is over, and gives how it ended. The stream tells what happened; this tells how it went.
    pub async fn wait(&self) -> Result<RunResult, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            result: Map<String, Value>,
        }
        let mut patience = Patience::new(self.client.give_up_after);
        loop {
            let url = self.client.url(&["sdk.v1.SdkAgentService", "WaitLiveRun"]);
            let request = self.client.request(Method::POST, url).json(&json!({"runId": self.id()}));
            let error = match self.client.json::<Answer>(request).await {
                Ok(answer) => return Ok(RunResult::new(answer.result)),
                Err(error) if error.is_temporary() => error,
                Err(error) => return Err(error),
            };
            // Silence is no failure here; it only says nothing of whether the server is there.
            if self.get().await.is_ok() {
                patience.progressed();
            }
            tokio::time::sleep(patience.next(error, None)?).await;
        }
    }

    /// Calls `tell` with each status that the run comes to from now on, the last one included, until the listener is
    /// dropped. It needs no stream, and a runtime of tokio.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), runcast_client::Error> {
    /// let run = runcast_client::Client::new("http://127.0.0.1:8080")?.run("fix-1")?;
    /// let listener = run.on_status_change(|status| eprintln!("{status}"));
    /// run.wait().await?;
    /// listener.finished().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_status_change(&self, tell: impl FnMut(&str) + Send + 'static) -> StatusListener {
        StatusListener::start(self.clone(), tell)
    }

    /// The run over and over, every `every`, for servers that do not stream: [`Poll::next`] gives it when it has changed.
    pub fn poll(&self, every: Duration) -> Poll {
        Poll { patience: Patience::new(self.client.give_up_after), run: self.clone(), every, last: None }
    }
}

/// A run that is asked for again and again.
#[derive(Debug)]
pub struct Poll {
    run: Run,
    every: Duration,
    last: Option<RunObject>,
    patience: Patience,
}

impl Poll {
    /// The run when it is first read, and whenever it has changed; [`None`] when it is over. Lost connections are tried again.
    pub async fn next(&mut self) -> Option<Result<RunObject, Error>> {
        loop {
            if self.last.as_ref().is_some_and(RunObject::is_terminal) {
                return None;
            }
            match self.run.get().await {
                Ok(run) => {
                    self.patience.progressed();
                    if self.last.as_ref() != Some(&run) {
                        self.last = Some(run.clone());
                        return Some(Ok(run));
                    }
                    tokio::time::sleep(self.every).await;
                }
                Err(error) if error.is_temporary() => match self.patience.next(error, None) {
                    Ok(wait) => tokio::time::sleep(wait).await,
                    Err(error) => return Some(Err(error)),
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
