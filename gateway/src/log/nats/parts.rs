//! Events that are larger than a message may be: their bytes lie in parts in a second stream.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::{Bytes, BytesMut};
use runcast_translators::event::RunId;
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::{Shared, message::Parts};
use crate::log::{AppendError, ReadError};

/// Room in a message for its headers.
const HEADERS: usize = 16 << 10;
/// Between two reads of a replica that has not all parts yet.
const BEHIND: Duration = Duration::from_millis(20);

impl Shared {
    /// Stores a payload that is too large for one message in parts; gives what the message says instead.
    pub(super) async fn put_away(&self, run: &RunId, payload: Bytes) -> Result<(Option<Parts>, Bytes), AppendError> {
        let max = self.bus.client.max_payload().saturating_sub(HEADERS).max(HEADERS);
        if payload.len() <= max {
            return Ok((None, payload));
        }
        let hash: String = Sha256::digest(&payload).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut count = 0;
        let mut rest = payload.clone();
        while !rest.is_empty() {
            let part = rest.split_to(max.min(rest.len()));
            let subject = self.bus.names.part(run, &hash, &count.to_string());
            let stored = self.bus.store(subject, HeaderMap::new(), part).await;
            stored.map_err(|why| AppendError::Unavailable(format!("a part of a large event is not stored: {why:?}")))?;
            count += 1;
        }
        let told = serde_json::json!({ "parts": count, "bytes": payload.len(), "sha256": hash });
        Ok((Some(Parts { count, bytes: payload.len(), hash }), told.to_string().into()))
    }

    /// Fetches a payload that was put away.
    pub(super) async fn fetch(&self, run: &RunId, parts: &Parts) -> Result<Bytes, ReadError> {
        let missing =
            || ReadError(format!("parts of a large event of run {run} are missing in the stream {}", self.bus.names.parts));
        if parts.bytes > self.settings.event_bytes_max || parts.count > parts.bytes {
            return Err(ReadError(format!("a large event of run {run} says that it has {} bytes", parts.bytes)));
        }
        let deadline = Instant::now() + self.wait;
        let mut payload = BytesMut::with_capacity(parts.bytes);
        for part in 0..parts.count {
            let subject = self.bus.names.part(run, &parts.hash, &part.to_string());
            loop {
                // An append that was tried again may have stored a part twice; any of them will do.
                let batch = self.bus.get(&self.bus.names.parts, &subject, 1, 1, usize::MAX).await?;
                if let Some(stored) = batch.messages.first() {
                    payload.extend_from_slice(&stored.payload);
                    break;
                }
                if Instant::now() > deadline {
                    return Err(missing());
                }
                sleep(BEHIND).await;
            }
        }
        let payload = payload.freeze();
        let hash: String = Sha256::digest(&payload).iter().map(|byte| format!("{byte:02x}")).collect();
        if hash == parts.hash {
            Ok(payload)
        } else {
            Err(ReadError(format!("a large event of run {run} is not what was stored")))
        }
    }
}
