//! JSON in a form that can be compared: members by name, no white space, numbers as they are written.

use runcast_translators::json::{Json, Kind, Raw};

pub fn plain(json: Raw<'_>) -> String {
    match json.kind() {
        Kind::Object => {
            let mut members: Vec<_> =
                json.members().map(|(key, value)| format!("{}:{}", Json::string(&key).text(), plain(value))).collect();
            members.sort();
            format!("{{{}}}", members.join(","))
        }
        Kind::Array => format!("[{}]", json.items().map(plain).collect::<Vec<_>>().join(",")),
        Kind::String => Json::string(&json.string().unwrap_or_default()).text().to_owned(),
        _ => json.text().to_owned(),
    }
}

/// What a case or an encoder wrote, which must be JSON.
pub fn parse(text: &[u8]) -> Result<Json, String> {
    Json::parse(&text.to_vec().into()).map_err(|error| format!("not JSON: {error}: {}", String::from_utf8_lossy(text)))
}
