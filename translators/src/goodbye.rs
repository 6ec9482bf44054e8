//! The table of endings: each reason to end a stream, in every protocol.

/// Whether and how a client should return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComeBack {
    /// The run is over, or the answer will not change.
    Never,
    /// With the last cursor, at once or after a short random wait.
    WithCursor,
    /// With the last cursor, waiting longer each time.
    WithBackoff,
    /// By polling REST.
    ByPolling,
}

/// Why a stream ends, or is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goodbye {
    Settled,
    Draining,
    StreamingUnavailable,
    BadMessage,
    /// What came is no WebSocket (RFC 6455, 7.4.1).
    BadFrame,
    /// A WebSocket's text was not UTF-8.
    NotUtf8,
    Internal,
    OverCapacity,
    Unauthorized,
    Forbidden,
    /// From where it comes too many credentials were wrong.
    TooManyFailures,
    /// Whether the credential is good cannot be known now.
    AuthUnavailable,
    UnknownRun,
    /// The log has no such run, and an upstream that may have it cannot be asked.
    UpstreamLost,
    SlowReader,
    ClientLeft,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// WebSocket close code.
    pub close_code: u16,
    /// Close reason: at most 123 bytes.
    pub close_reason: &'static str,
    /// `code` of an SSE `error` record or a JSON error; `None` where the protocol needs none.
    pub code: &'static str,
    /// HTTP status, where no stream has begun yet.
    pub http: u16,
    /// gRPC and Connect status.
    pub rpc: RpcCode,
    /// The metric's label.
    pub label: &'static str,
    pub come_back: ComeBack,
}

/// The status codes of gRPC; the number is gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RpcCode {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl RpcCode {
    /// All of them, each at its number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The name that Connect writes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Canceled => "canceled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// From Connect's name; one that nobody knows is unknown.
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|code| code.name() == name).unwrap_or(Self::Unknown)
    }

    /// From gRPC's number; one that nobody knows is unknown.
    pub fn from_number(number: i32) -> Self {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// The HTTP status of a unary answer of Connect with this code.
    pub fn http(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
        }
    }

    /// The code of an answer that has none of its own, from its HTTP status.
    pub fn from_http(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }
}

impl Goodbye {
    pub const ALL: [Self; 16] = [
        Self::Settled,
        Self::Draining,
        Self::StreamingUnavailable,
        Self::BadMessage,
        Self::BadFrame,
        Self::NotUtf8,
        Self::Internal,
        Self::OverCapacity,
        Self::Unauthorized,
        Self::Forbidden,
        Self::TooManyFailures,
        Self::AuthUnavailable,
        Self::UnknownRun,
        Self::UpstreamLost,
        Self::SlowReader,
        Self::ClientLeft,
    ];

    pub fn ending(self) -> Ending {
        use ComeBack::{ByPolling, Never, WithBackoff, WithCursor};
        use RpcCode as R;
        let row = |close_code, close_reason, code, http, rpc, label, come_back| Ending {
            close_code,
            close_reason,
            code,
            http,
            rpc,
            label,
            come_back,
        };
        match self {
            Self::Settled => row(1000, "the run is over", "settled", 200, R::Ok, "settled", Never),
            Self::Draining => row(
                1001,
                "this server is going down: reconnect with your cursor",
                "draining",
                503,
                R::Unavailable,
                "draining",
                WithCursor,
            ),
            Self::StreamingUnavailable => row(
                1003,
                "no stream for this run: poll instead",
                "unavailable",
                501,
                R::Unimplemented,
                "streaming_unavailable",
                ByPolling,
            ),
            Self::BadMessage => row(
                1008,
                "a client message was malformed or too large",
                "bad_message",
                400,
                R::InvalidArgument,
                "bad_message",
                Never,
            ),
            Self::BadFrame => {
                row(1002, "what came is no WebSocket frame", "bad_frame", 400, R::InvalidArgument, "bad_frame", Never)
            }
            Self::NotUtf8 => row(1007, "a text was not UTF-8", "not_utf8", 400, R::InvalidArgument, "not_utf8", Never),
            Self::Internal => row(1011, "the server failed: reconnect", "internal", 500, R::Internal, "internal", WithBackoff),
            Self::OverCapacity => row(
                1013,
                "the server is full: try again later",
                "over_capacity",
                503,
                R::Unavailable,
                "over_capacity",
                WithBackoff,
            ),
            Self::Unauthorized => row(
                4401,
                "the credential is missing, wrong or expired",
                "unauthorized",
                401,
                R::Unauthenticated,
                "unauthorized",
                Never,
            ),
            Self::Forbidden => row(4403, "not allowed for this run", "forbidden", 403, R::PermissionDenied, "forbidden", Never),
            Self::TooManyFailures => row(
                1013,
                "too many wrong credentials came from your address: try again later",
                "too_many_failures",
                429,
                R::ResourceExhausted,
                "too_many_failures",
                WithBackoff,
            ),
            Self::AuthUnavailable => row(
                1013,
                "credentials cannot be checked now: try again later",
                "auth_unavailable",
                503,
                R::Unavailable,
                "auth_unavailable",
                WithBackoff,
            ),
            Self::UnknownRun => row(4404, "no such run", "unknown_node", 404, R::NotFound, "unknown_run", Never),
            Self::UpstreamLost => row(
                1013,
                "an upstream that may have this run cannot be asked now: try again later",
                "upstream_unavailable",
                503,
                R::Unavailable,
                "upstream_lost",
                WithBackoff,
            ),
            Self::SlowReader => row(
                4408,
                "you did not take data in time: reconnect with your cursor",
                "stream_dropped",
                503,
                R::ResourceExhausted,
                "slow_reader",
                WithCursor,
            ),
            Self::ClientLeft => row(1000, "", "client_left", 200, R::Ok, "client_left", WithCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct_and_reasons_fit_a_close_frame() {
        let labels: std::collections::HashSet<_> = Goodbye::ALL.iter().map(|g| g.ending().label).collect();
        assert_eq!(labels.len(), Goodbye::ALL.len());
        assert!(Goodbye::ALL.iter().all(|g| g.ending().close_reason.len() <= 123));
    }
}
