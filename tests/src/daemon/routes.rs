//! What the daemon answers.

use std::{io, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, Query, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Asked, Daemon, Habit, error_record, read_script, ring::Item};

/// The longest body that is read.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Requests that are remembered.
const ASKED_MAX: usize = 10_000;

#[derive(Clone)]
struct Door {
    daemon: Daemon,
    /// Whether the token is wanted here.
    over_tcp: bool,
}

pub fn routes(daemon: &Daemon, over_tcp: bool) -> Router {
    let door = Door { daemon: daemon.clone(), over_tcp };
    let mut routes = Router::new()
        .route("/v1/nodes", get(list).post(create))
        .route("/v1/nodes/{id}", get(node))
        .route("/v1/nodes/{id}/events", get(events))
        .route("/v1/nodes/{id}/outcome", get(outcome))
        .route("/v1/nodes/{id}/revive", post(revive));
    if daemon.0.options.control {
        routes = routes.route("/control", post(control));
    }
    routes.with_state(daemon.clone()).layer(from_fn_with_state(door, enter))
}

/// Notes what is asked, wants the token, and has its habits.
async fn enter(State(door): State<Door>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "too_large");
    };
    let habit = {
        let mut state = door.daemon.state();
        if state.asked.len() < ASKED_MAX {
            let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
            let body = String::from_utf8_lossy(&body).into_owned();
            state.asked.push(Asked { method: head.method.to_string(), path, body });
        }
        state.habit.clone()
    };
    if door.over_tcp
        && let Some(token) = &door.daemon.0.options.token
        && head.headers.get(header::AUTHORIZATION).is_none_or(|given| given.as_bytes() != format!("Bearer {token}").as_bytes())
    {
        return refuse(StatusCode::UNAUTHORIZED, "unauthorized");
    }
    match habit {
        Some(Habit::Refuse(status, code)) => {
            refuse(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code)
        }
        Some(Habit::Hang) => std::future::pending().await,
        Some(Habit::Say(kind, bytes)) if head.uri.path().ends_with("/events") => {
            ([(header::CONTENT_TYPE, kind.unwrap_or("text/html"))], bytes).into_response()
        }
        Some(Habit::NothingMore) if head.uri.path().ends_with("/events") => StatusCode::NO_CONTENT.into_response(),
        _ => next.run(Request::from_parts(head, Body::from(body))).await,
    }
}

async fn list(State(daemon): State<Daemon>) -> Response {
    let nodes: Vec<Value> = daemon.state().nodes.iter().map(|(id, node)| node.object(id)).collect();
    answer(StatusCode::OK, &json!({ "nodes": nodes }))
}

async fn create(State(daemon): State<Daemon>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(prompt) = body["prompt"].as_str() else { return refuse(StatusCode::BAD_REQUEST, "invalid_request") };
    let id = daemon.make();
    let (player, reply) = (daemon.clone(), daemon.0.options.reply.clone());
    let (node, prompt) = (id.clone(), prompt.to_owned());
    tokio::spawn(async move { player.play(reply, Some(node), Some(prompt)).await });
    let object = daemon.with(&id, |node| node.object(&id));
    answer(StatusCode::CREATED, &object)
}

async fn node(State(daemon): State<Daemon>, Path(id): Path<String>) -> Response {
    match daemon.state().nodes.get(&id) {
        Some(node) => answer(StatusCode::OK, &node.object(&id)),
        None => refuse(StatusCode::NOT_FOUND, "unknown_node"),
    }
}

async fn outcome(State(daemon): State<Daemon>, Path(id): Path<String>) -> Response {
    match daemon.state().nodes.get(&id) {
        Some(node) => match &node.outcome {
            Some(outcome) => answer(StatusCode::OK, outcome),
            None => refuse(StatusCode::CONFLICT, "not_settled"),
        },
        None => refuse(StatusCode::NOT_FOUND, "unknown_node"),
    }
}

async fn revive(State(daemon): State<Daemon>, Path(id): Path<String>) -> Response {
    match daemon.state().nodes.get_mut(&id) {
        Some(node) if node.outcome.is_some() => refuse(StatusCode::CONFLICT, "settled"),
        Some(node) => {
            node.is_dormant = false;
            answer(StatusCode::OK, &node.object(&id))
        }
        None => refuse(StatusCode::NOT_FOUND, "unknown_node"),
    }
}

async fn control(State(daemon): State<Daemon>, body: Bytes) -> Response {
    match read_script(&String::from_utf8_lossy(&body)) {
        Ok(script) => {
            daemon.play(script, None, None).await;
            answer(StatusCode::OK, &json!({}))
        }
        Err(error) => answer(
            StatusCode::BAD_REQUEST,
            &json!({"error": {"code": "invalid_script", "message": error.to_string(), "details": null}}),
        ),
    }
}

#[derive(Deserialize)]
struct After {
    after: Option<String>,
}

async fn events(State(daemon): State<Daemon>, Path(id): Path<String>, Query(asked): Query<After>) -> Response {
    let Ok(after) = asked.after.as_deref().map(str::parse::<u64>).transpose() else {
        return refuse(StatusCode::BAD_REQUEST, "invalid_cursor");
    };
    let mut state = daemon.state();
    let life = state.life;
    let Some(node) = state.nodes.get(&id) else { return refuse(StatusCode::NOT_FOUND, "unknown_node") };
    if node.outcome.is_some() && node.ring.newest() > 0 && after.is_some_and(|after| after >= node.ring.newest()) {
        return StatusCode::NO_CONTENT.into_response();
    }
    let from = after.unwrap_or(0);
    let mut opening = format!("retry: 2000\nid: {from}\n\n").into_bytes();
    let floor = node.ring.floor();
    if after.is_some_and(|after| after + 1 < floor) {
        opening.extend(error_record("stream_gap", json!({ "earliest_sequence": floor })));
    }
    if node.ring.newest() == 0
        && let Some(outcome) = &node.outcome
    {
        // The stream is gone and the outcome is not: it is told as the first record.
        let data = json!({"node_id": id, "sequence_number": 1, "outcome": outcome});
        opening.extend(super::record(Some(1), "node.settled", &data));
        return event_stream(Body::from(opening));
    }
    let place = node.ring.place_after(from);
    let listener = Listener {
        opening: Some(opening.into()),
        place,
        live_from: node.ring.end(),
        life,
        id: id.clone(),
        daemon: daemon.clone(),
    };
    *state.open.entry(id).or_default() += 1;
    drop(state);
    event_stream(Body::from_stream(stream::unfold(Some(listener), |listener| async move {
        let mut listener = listener?;
        match listener.next().await {
            Heard::Bytes(bytes) => Some((Ok(bytes), Some(listener))),
            Heard::Last(bytes) => Some((Ok(bytes), None)),
            Heard::End => None,
            Heard::Cut => Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), None)),
        }
    })))
}

/// A stream that is open.
struct Listener {
    daemon: Daemon,
    id: String,
    opening: Option<Bytes>,
    /// Where in the ring it stands,
    place: u64,
    /// and stood at its begin: what is not kept is only for those who listened then.
    live_from: u64,
    life: u64,
}

enum Heard {
    Bytes(Bytes),
    Last(Bytes),
    End,
    Cut,
}

impl Listener {
    async fn next(&mut self) -> Heard {
        if let Some(opening) = self.opening.take() {
            return Heard::Bytes(opening);
        }
        let mut bell = self.daemon.0.bell.subscribe();
        loop {
            bell.borrow_and_update();
            if let Some(heard) = self.look() {
                return heard;
            }
            let silence = self.daemon.0.options.keepalive.unwrap_or(Duration::MAX);
            if tokio::time::timeout(silence, bell.changed()).await.is_err() {
                let mut state = self.daemon.state();
                if !state.is_stalled && !state.is_mute {
                    state.keepalives += 1;
                    return Heard::Bytes(Bytes::from_static(b": keepalive\n\n"));
                }
            }
        }
    }

    fn look(&mut self) -> Option<Heard> {
        let state = self.daemon.state();
        if state.life != self.life {
            return Some(Heard::Cut);
        }
        if state.is_stalled {
            return None;
        }
        let Some(node) = state.nodes.get(&self.id) else { return Some(Heard::Cut) };
        loop {
            let is_live = self.place >= self.live_from;
            let Ok(item) = node.ring.at(self.place) else {
                return Some(Heard::Last(error_record("stream_dropped", Value::Null)));
            };
            let Some(item) = item else {
                return (node.outcome.is_some() && node.ring.newest() > 0 && is_live).then_some(Heard::End);
            };
            self.place += 1;
            match item {
                Item::Event(_, bytes) => return Some(Heard::Bytes(bytes.clone())),
                Item::Raw(bytes) if is_live => return Some(Heard::Bytes(bytes.clone())),
                Item::End if is_live => return Some(Heard::End),
                Item::Cut if is_live => return Some(Heard::Cut),
                _ => {}
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(open) = self.daemon.state().open.get_mut(&self.id) {
            *open -= 1;
        }
    }
}

fn event_stream(body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache, no-transform")];
    (headers, body).into_response()
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn refuse(status: StatusCode, code: &str) -> Response {
    let message = format!("the daemon says {code}");
    answer(status, &json!({"error": {"code": code, "message": message, "details": null}}))
}
