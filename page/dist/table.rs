&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-Cwb2BQIn.js", kind: "text/javascript; charset=utf-8", etag: "\"48dade8879056d7b6f24d5c4\"", bytes: include_bytes!("assets/index-Cwb2BQIn.js") },
    File { path: "assets/index-Dxi7Q0Oy.css", kind: "text/css; charset=utf-8", etag: "\"3bb8d8927dd16e78768c8182\"", bytes: include_bytes!("assets/index-Dxi7Q0Oy.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"a47215441fa5703e3ea63bbe\"", bytes: include_bytes!("index.html") },
]
