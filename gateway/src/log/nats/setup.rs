//! Streams and buckets: made if they are missing, taken if they fit, refused with what differs.

use std::time::Duration;

use async_nats::jetstream::{
    Context,
    context::{GetStreamErrorKind, KeyValueErrorKind},
    kv,
    stream::{Config, DiscardPolicy, Republish, StorageType},
};
use runcast_config::{Log as LogSettings, Nats as NatsSettings, TICKET_MS_MAX};

use super::{OpenError, names::Names};

/// A name, with what the bus keeps about it.
const CLAIM_BYTES: usize = 192;
/// How long a claimed name is remembered: longer than any is good.
const CLAIMS_AGE: Duration = Duration::from_millis(2 * TICKET_MS_MAX);

/// How the stream of events must be.
fn stream_of_events(names: &Names, settings: &NatsSettings) -> Config {
    Config {
        name: names.stream.clone(),
        description: Some("Events of runs; runcast removes them run by run".into()),
        subjects: vec![names.all_logs()],
        max_bytes: settings.stream_bytes_max,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        allow_direct: true,
        allow_atomic_publish: true,
        republish: Some(Republish { source: names.all_logs(), destination: names.all_tails(), headers_only: false }),
        ..Config::default()
    }
}

/// How the stream of the parts of large events must be.
fn stream_of_parts(names: &Names, settings: &NatsSettings) -> Config {
    Config {
        name: names.parts.clone(),
        description: Some("Parts of events that are larger than a message".into()),
        subjects: vec![names.all_parts()],
        max_bytes: settings.stream_bytes_max,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        allow_direct: true,
        ..Config::default()
    }
}

/// How the stream of packs must be. What it has no room for is gone first, for all of it lies in the stream of events.
fn stream_of_packs(names: &Names, settings: &NatsSettings) -> Config {
    Config {
        name: names.packs.clone(),
        description: Some("Packs of events, to read history in few messages; it may be emptied at any time".into()),
        subjects: vec![names.all_packs()],
        max_bytes: settings.stream_bytes_max,
        max_messages_per_subject: 1,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        allow_direct: true,
        ..Config::default()
    }
}

/// What differs in a way that runcast cannot work with; nothing if it fits.
fn differences(found: &Config, wanted: &Config) -> Vec<String> {
    let mut out = Vec::new();
    let mut differ = |what: &str, found: String, wanted: String| {
        if found != wanted {
            out.push(format!("{what} is {found} and must be {wanted}"));
        }
    };
    differ("subjects", format!("{:?}", found.subjects), format!("{:?}", wanted.subjects));
    differ("retention", format!("{:?}", found.retention), format!("{:?}", wanted.retention));
    differ("discard", format!("{:?}", found.discard), format!("{:?}", wanted.discard));
    differ("storage", format!("{:?}", found.storage), format!("{:?}", wanted.storage));
    differ("max_age", format!("{:?}", found.max_age), format!("{:?}", wanted.max_age));
    differ("allow_direct", found.allow_direct.to_string(), wanted.allow_direct.to_string());
    differ("allow_atomic", found.allow_atomic_publish.to_string(), wanted.allow_atomic_publish.to_string());
    differ("republish", format!("{:?}", found.republish), format!("{:?}", wanted.republish));
    let unlimited = |count: i64| if count > 0 { count.to_string() } else { "unlimited".to_owned() };
    differ("max_msgs", unlimited(found.max_messages), unlimited(wanted.max_messages));
    differ("max_msg_size", unlimited(found.max_message_size.into()), unlimited(wanted.max_message_size.into()));
    differ("max_msgs_per_subject", unlimited(found.max_messages_per_subject), unlimited(wanted.max_messages_per_subject));
    let is_mirror = found.mirror.is_some() || found.sources.as_ref().is_some_and(|sources| !sources.is_empty());
    let is_set = [
        ("no_ack", found.no_ack),
        ("sealed", found.sealed),
        ("deny_purge", found.deny_purge),
        ("a mirror or with sources", is_mirror),
        ("with a subject transform", found.subject_transform.is_some()),
    ];
    for (what, is_set) in is_set {
        differ(what, is_set.to_string(), "false".into());
    }
    out
}

/// Takes or makes a stream. Without `make` it only looks; then `false` says that it is missing.
async fn stream(context: &Context, wanted: Config, make: bool) -> Result<bool, OpenError> {
    let name = wanted.name.clone();
    let failed = |why: String| OpenError::Setup { name: name.clone(), why };
    match context.get_stream(&name).await {
        Ok(mut found) => {
            let info = found.info().await.map_err(|error| failed(error.to_string()))?;
            let differences = differences(&info.config, &wanted);
            if differences.is_empty() { Ok(true) } else { Err(OpenError::Differs { name, what: differences.join("; ") }) }
        }
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(why) if why.error_code() == async_nats::jetstream::ErrorCode::STREAM_NOT_FOUND => {
                if make {
                    tracing::info!(stream = name, "the stream is made");
                    // Another replica may make it at the same time: the server takes the same wish twice.
                    context.create_stream(wanted).await.map_err(|error| failed(error.to_string()))?;
                }
                Ok(make)
            }
            _ => Err(failed(error.to_string())),
        },
    }
}

/// What differs of a bucket; nothing if it fits.
fn bucket_differences(found: &Config, wanted: &kv::Config) -> Vec<String> {
    let mut out = Vec::new();
    // A replica says that it lives several times in a lease: entries that last longer are merely taken over later.
    let lasts = match wanted.max_age {
        Duration::ZERO => found.max_age.is_zero(),
        wanted => found.max_age >= wanted,
    };
    if !lasts {
        let wanted = match wanted.max_age {
            Duration::ZERO => "unlimited".to_owned(),
            wanted => format!("{wanted:?} or more (log.nats.lease_ms)"),
        };
        out.push(format!("max_age is {:?} and must be {wanted}", found.max_age));
    }
    if found.max_messages > 0 {
        out.push(format!("max_msgs is {} and must be unlimited", found.max_messages));
    }
    out
}

/// Takes or makes a bucket. Without `make` it only looks; then `None` says that it is missing.
async fn bucket(context: &Context, wanted: kv::Config, make: bool) -> Result<Option<kv::Store>, OpenError> {
    let name = format!("KV_{}", wanted.bucket);
    let failed = |why: String| OpenError::Setup { name: name.clone(), why };
    match context.get_key_value(&wanted.bucket).await {
        Ok(store) => {
            let found = store.status().await.map_err(|error| failed(error.to_string()))?.info.config;
            let differences = bucket_differences(&found, &wanted);
            if differences.is_empty() { Ok(Some(store)) } else { Err(OpenError::Differs { name, what: differences.join("; ") }) }
        }
        Err(error) if matches!(error.kind(), KeyValueErrorKind::GetBucket) && make => {
            context.create_key_value(wanted).await.map(Some).map_err(|error| failed(error.to_string()))
        }
        Err(error) if matches!(error.kind(), KeyValueErrorKind::GetBucket) => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// How the buckets must be: of runs, of owners, of leases, of claimed names.
fn buckets(names: &Names, settings: &LogSettings) -> [kv::Config; 4] {
    let config = |bucket: &str, description: &str, max_age| kv::Config {
        bucket: bucket.to_owned(),
        description: description.to_owned(),
        history: 1,
        max_age,
        num_replicas: settings.nats.replicas,
        ..kv::Config::default()
    };
    let claims_bytes_max = settings.claims_max.saturating_mul(CLAIM_BYTES);
    [
        config(&names.runs, "What is known of each run", Duration::ZERO),
        config(&names.owners, "Which replica follows which run", Duration::ZERO),
        config(&names.leases, "Replicas that live", Duration::from_millis(settings.nats.lease_ms)),
        kv::Config {
            // A full bucket takes no more; one that was made with another size is left as it is.
            max_bytes: i64::try_from(claims_bytes_max).unwrap_or(i64::MAX),
            ..config(&names.claims, "Names that are good once", CLAIMS_AGE)
        },
    ]
}

/// The buckets, once they are there.
pub(super) struct Buckets {
    pub runs: kv::Store,
    pub owners: kv::Store,
    pub leases: kv::Store,
    pub claims: kv::Store,
}

/// Makes what is missing, takes what fits.
pub(super) async fn prepare(context: &Context, names: &Names, settings: &LogSettings) -> Result<Buckets, OpenError> {
    stream(context, stream_of_events(names, &settings.nats), true).await?;
    stream(context, stream_of_parts(names, &settings.nats), true).await?;
    stream(context, stream_of_packs(names, &settings.nats), true).await?;
    let [runs, owners, leases, claims] = buckets(names, settings);
    let made = async |wanted: kv::Config| {
        let name = wanted.bucket.clone();
        let made = bucket(context, wanted, true).await?;
        made.ok_or_else(|| OpenError::Setup { name, why: "it was not made".into() })
    };
    Ok(Buckets { runs: made(runs).await?, owners: made(owners).await?, leases: made(leases).await?, claims: made(claims).await? })
}

/// Looks whether what is there fits; says of each stream and bucket whether it is there.
pub(super) async fn look(context: &Context, names: &Names, settings: &LogSettings) -> Result<Vec<(String, bool)>, OpenError> {
    let mut found = Vec::new();
    let nats = &settings.nats;
    let streams = [stream_of_events(names, nats), stream_of_parts(names, nats), stream_of_packs(names, nats)];
    for wanted in streams {
        found.push((format!("the stream {}", wanted.name), stream(context, wanted, false).await?));
    }
    for wanted in buckets(names, settings) {
        found.push((format!("the bucket {}", wanted.bucket), bucket(context, wanted, false).await?.is_some()));
    }
    Ok(found)
}
