&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-D5oLUO3U.css", kind: "text/css; charset=utf-8", etag: "\"3e56c033fb5a079722cb8256\"", bytes: include_bytes!("assets/index-D5oLUO3U.css") },
    File { path: "assets/index-DCXHZHo2.js", kind: "text/javascript; charset=utf-8", etag: "\"043630404bbf53156bee1091\"", bytes: include_bytes!("assets/index-DCXHZHo2.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"646a36a939eb407b4d99efbf\"", bytes: include_bytes!("index.html") },
]
