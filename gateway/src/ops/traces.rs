//! Spans for OpenTelemetry: of streams, of what is sent in, and of appends, as parts of the traces that clients name in
//! `traceparent`. Without an address to send them to there are none.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider},
};
use runcast_config::Telemetry;
use runcast_translators::event::RunId;
use tracing::{Span, Subscriber, debug_span, field::Empty};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::metrics::Protocol;

/// What all spans are of: a filter of logs leaves them out, and that of spans takes nothing else.
const TARGET: &str = "runcast::trace";

/// The trace that a client says its request belongs to.
#[derive(Clone, Debug, Default)]
pub struct Trace(Option<Context>);

/// Sends spans; what it has not sent is sent when it is told to.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

impl Trace {
    /// By the header `traceparent`; one that cannot be read is none.
    pub fn of(headers: &HeaderMap) -> Self {
        if !headers.contains_key("traceparent") {
            return Self(None);
        }
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        Self(context.span().span_context().is_valid().then_some(context))
    }

    /// A client's stream of a run.
    pub fn stream(&self, protocol: Protocol, run: &RunId) -> Span {
        self.put_on(debug_span!(target: TARGET, parent: None, "stream", protocol = protocol.label(), %run, how = Empty))
    }

    /// A request that sends lines of a run.
    pub fn ingest(&self, run: &RunId) -> Span {
        self.put_on(debug_span!(target: TARGET, parent: None, "ingest", %run))
    }

    fn put_on(&self, span: Span) -> Span {
        if let Some(context) = &self.0 {
            let _ = span.set_parent(context.clone());
        }
        span
    }
}

/// Events on their way into the log, as a part of what is being done.
pub fn append(run: &RunId, events: usize) -> Span {
    debug_span!(target: TARGET, "append", %run, events)
}

/// Tells `put` the headers by which others can go on with the trace of what is being done, if there is one.
pub fn inject(put: impl FnMut(&str, String)) {
    let span = Span::current();
    if !span.is_none() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut Put(put));
    }
}

impl Exporter {
    /// Called within a runtime. `None`: nobody wants spans.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn new(settings: &Telemetry) -> Result<Option<Self>, String> {
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
        let timeout = Duration::from_millis(settings.otlp_timeout_ms);
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(timeout).build();
        let exporter = exporter.map_err(|error| format!("telemetry.otlp_endpoint: {error}"))?;
        let queue = BatchConfigBuilder::default()
            .with_max_queue_size(settings.spans_max)
            .with_max_export_batch_size(settings.spans_max.min(512))
            .with_scheduled_delay(Duration::from_millis(settings.otlp_every_ms))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(queue).build())
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample_ratio))))
            .with_resource(Resource::builder().with_service_name(settings.service_name.clone()).build())
            .build();
        Ok(Some(Self(provider)))
    }

    /// What hands spans to it, for the subscriber.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        let layer: OpenTelemetryLayer<S, SdkTracer> = tracing_opentelemetry::layer().with_tracer(self.0.tracer("runcast"));
        layer.with_filter(Targets::new().with_target(TARGET, tracing::Level::DEBUG))
    }

    /// Sends what there is. Others are waited for, so it is called where that may be.
    pub fn flush(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// A request's headers, as the library reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// Somebody's headers, as the library writes them.
struct Put<F>(F);

impl<F: FnMut(&str, String)> Injector for Put<F> {
    fn set(&mut self, key: &str, value: String) {
        // An empty `tracestate` says nothing.
        if !value.is_empty() {
            (self.0)(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Trace {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", text.parse().expect("a header"));
        Trace::of(&headers)
    }

    #[test]
    fn only_what_the_standard_says_is_a_parent() {
        assert!(trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").0.is_some());
        for bad in [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(trace(bad).0.is_none(), "{bad}");
        }
        assert!(Trace::of(&HeaderMap::new()).0.is_none());
    }
}
