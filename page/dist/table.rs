&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-CMWgJs0E.js", kind: "text/javascript; charset=utf-8", etag: "\"d3a31149e26a8d1f6e7f72e2\"", bytes: include_bytes!("assets/index-CMWgJs0E.js") },
    File { path: "assets/index-DUTD8qhi.css", kind: "text/css; charset=utf-8", etag: "\"5e1cdeaea55c3976928b3530\"", bytes: include_bytes!("assets/index-DUTD8qhi.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"3765ee571892cb34ce6ea635\"", bytes: include_bytes!("index.html") },
]
