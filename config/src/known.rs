//! Which keys there are, and which of them somebody may have meant.

use toml::Value;

use crate::{Bridge, ConfigError, Daemon, Jwt, Postgres, Secret, Settings, Token, settings::Ndjson};

/// A value that has every key there is.
fn example() -> Value {
    let mut settings = Settings::default();
    settings.server.unix_socket = Some(Default::default());
    let tls = &mut settings.server.tls;
    for file in [&mut tls.certificate_file, &mut tls.key_file, &mut tls.client_ca_file] {
        *file = Some(Default::default());
    }
    settings.auth.ticket_key = Some(Secret::default());
    settings.auth.ticket_key_file = Some(Default::default());
    settings.auth.tokens.push(Token {
        hash: Some(String::new()),
        token: Some(Secret::default()),
        token_file: Some(Default::default()),
        subject: Some(String::new()),
        expires_at: Some(String::new()),
        ..Token::default()
    });
    settings.auth.jwt.push(Jwt {
        jwks_url: Some(String::new()),
        jwks_file: Some(Default::default()),
        public_key_file: Some(Default::default()),
        secret: Some(Secret::default()),
        secret_file: Some(Default::default()),
        ..Jwt::default()
    });
    let nats = &mut settings.log.nats;
    for file in [
        &mut nats.credentials_file,
        &mut nats.nkey_file,
        &mut nats.password_file,
        &mut nats.ca_file,
        &mut nats.certificate_file,
        &mut nats.key_file,
    ] {
        *file = Some(Default::default());
    }
    nats.user = Some(String::new());
    settings.upstream.push(crate::Upstream::Ndjson(Ndjson::default()));
    settings.upstream.push(crate::Upstream::Postgres(Box::new(Postgres {
        url: Some(Secret::default()),
        url_file: Some(Default::default()),
        ca_file: Some(Default::default()),
        ..Postgres::default()
    })));
    settings.upstream.push(crate::Upstream::Daemon(Box::new(Daemon {
        token: Some(Secret::default()),
        token_file: Some(Default::default()),
        ca_file: Some(Default::default()),
        list_path: Some(String::new()),
        ..Daemon::default()
    })));
    settings.upstream.push(crate::Upstream::Bridge(Box::new(Bridge {
        token: Some(Secret::default()),
        token_file: Some(Default::default()),
        ..Bridge::default()
    })));
    Value::try_from(settings).unwrap_or_else(|error| unreachable!("settings are plain data: {error}"))
}

/// Refuses the first key that is not known.
pub(crate) fn check(value: &Value) -> Result<(), ConfigError> {
    check_in(value, &example(), "")
}

fn check_in(value: &Value, known: &Value, at: &str) -> Result<(), ConfigError> {
    match (value, known) {
        (Value::Table(table), Value::Table(known)) => {
            for (key, inner) in table {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                let Some(expected) = known.get(key) else {
                    let hint = nearest(key, known.keys()).map_or_else(
                        || format!("; known here: {}", known.keys().cloned().collect::<Vec<_>>().join(", ")),
                        |near| format!("; did you mean `{}`?", path.replacen(key, near, 1)),
                    );
                    return Err(ConfigError::UnknownKey { key: path, hint });
                };
                check_in(inner, expected, &path)?;
            }
            Ok(())
        }
        (Value::Array(items), Value::Array(known)) => items.iter().try_for_each(|item| {
            // Tables of several kinds may stand in one array. What has no kind that is known is refused elsewhere.
            let of_kind = known.iter().find(|known| known.get("kind") == item.get("kind"));
            of_kind.map_or(Ok(()), |known| check_in(item, known, at))
        }),
        _ => Ok(()),
    }
}

/// Every key with a default, as `section.key`.
#[cfg(test)]
pub(crate) fn keys() -> Vec<String> {
    fn walk(value: &Value, at: &str, out: &mut Vec<String>) {
        match value {
            Value::Table(table) => {
                table
                    .iter()
                    .for_each(|(key, inner)| walk(inner, &if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, out));
            }
            _ => out.push(at.to_owned()),
        }
    }
    let mut out = Vec::new();
    walk(&Value::try_from(Settings::default()).expect("plain"), "", &mut out);
    out
}

#[cfg(test)]
pub(crate) fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// The known key that is at most a third of its letters away.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    known
        .map(|candidate| (distance(key, candidate), candidate))
        .min_by_key(|(far, _)| *far)
        .and_then(|(far, candidate)| (far <= 1 + candidate.len().max(key.len()) / 3).then_some(candidate))
}

/// How many single-letter changes lie between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (before + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}
