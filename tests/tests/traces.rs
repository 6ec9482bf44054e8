//! Spans, as a collector gets them, and the traces that they are parts of.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value as AnyValue,
    trace::v1::Span,
};
use reqwest::Method;
use runcast_tests::{
    fixtures,
    records::Door,
    replicas::Replicas,
    server::{Options, Server},
    until,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A collector: what it was sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let spans = request.into_inner().resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans);
        self.0.lock().expect("not poisoned").extend(spans);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn serve() -> (Self, String) {
        let collector = Self::default();
        let routes = tonic::service::Routes::new(TraceServiceServer::new(collector.clone())).into_axum_router();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, url)
    }

    fn named(&self, name: &str) -> Vec<Span> {
        self.0.lock().expect("not poisoned").iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
    match value {
        AnyValue::StringValue(text) => Some(text),
        AnyValue::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const SENT: &str = "0af7651916cd43dd8448eb211c80319c";
const WATCHED: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_parts_of_the_traces_that_clients_name() {
    let (collector, url) = Collector::serve().await;
    let replicas = Replicas::start_with(1, |options| {
        options.env("RUNCAST__TELEMETRY__OTLP_ENDPOINT", &url).env("RUNCAST__TELEMETRY__OTLP_EVERY_MS", 20)
    });
    // Another service that reads along.
    let address = replicas.nats.url.trim_start_matches("nats://");
    let mut bus = tokio::net::TcpStream::connect(address).await.expect("connected");
    bus.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB runcast.tail.* 1\r\nPING\r\n").await.expect("written");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("PONG") {
        assert!(bus.read_buf(&mut heard).await.expect("open") > 0);
    }
    let door = Door::of(&replicas.servers[0]);
    let parent = |trace: &str| format!("00-{trace}-00f067aa0ba902b7-01");
    let sent = door.request(Method::POST, "/v1/runs/r/events?session=tests").header("traceparent", parent(SENT));
    assert!(sent.body(fixtures::run("failed-run")).send().await.expect("an answer").status().is_success());
    replicas.servers[0].end("r", Some(1)).await;
    let watched = door.request(Method::GET, "/v1/nodes/r/events").header("traceparent", parent(WATCHED));
    watched.send().await.expect("an answer").text().await.expect("a body");

    let [ingest] = until("the request's span", || async { <[Span; 1]>::try_from(collector.named("ingest")).ok() }).await;
    assert_eq!((hex(&ingest.trace_id), hex(&ingest.parent_span_id)), (SENT.into(), "00f067aa0ba902b7".into()));
    assert_eq!(attribute(&ingest, "run").as_deref(), Some("r"));
    let append =
        until("the append's span", || async { collector.named("append").into_iter().find(|span| hex(&span.trace_id) == SENT) });
    let append = append.await;
    assert_eq!(append.parent_span_id, ingest.span_id);
    let stream = until("the stream's span", || async { collector.named("stream").pop() }).await;
    assert_eq!((hex(&stream.trace_id), hex(&stream.parent_span_id)), (WATCHED.into(), "00f067aa0ba902b7".into()));
    assert_eq!(
        ["run", "protocol", "how"].map(|name| attribute(&stream, name)),
        [Some("r".into()), Some("sse".into()), Some("settled".into())]
    );
    let trace = format!("traceparent: 00-{SENT}-{}-01", hex(&append.span_id));
    while !String::from_utf8_lossy(&heard).contains(&trace) {
        assert!(bus.read_buf(&mut heard).await.expect("open") > 0, "{}", String::from_utf8_lossy(&heard));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_holds_nobody_up_and_what_is_left_is_sent_at_the_end() {
    let (collector, url) = Collector::serve().await;
    // Nothing is sent before the end of the hour.
    let options = Options::default().env("RUNCAST__TELEMETRY__OTLP_EVERY_MS", 3_600_000);
    let mut server = Server::start_with(options.env("RUNCAST__TELEMETRY__OTLP_ENDPOINT", url));
    server.ingest("r", fixtures::run("failed-run")).await;
    assert_eq!(server.terminate().await, Some(0));
    assert!(!collector.named("ingest").is_empty() && !collector.named("append").is_empty());

    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
    let options = Options::default().env("RUNCAST__TELEMETRY__OTLP_EVERY_MS", 10).env("RUNCAST__TELEMETRY__SPANS_MAX", 4);
    let mut server = Server::start_with(options.env("RUNCAST__TELEMETRY__OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")));
    for run in 0..20 {
        server.ingest(&format!("r{run}"), fixtures::run("failed-run")).await;
    }
    assert_eq!(server.get("/v1/agents/runs/r19").await.0, 200);
    assert_eq!(server.terminate().await, Some(0));
}
