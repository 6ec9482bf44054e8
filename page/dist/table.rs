&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-CDPqp6ba.css", kind: "text/css; charset=utf-8", etag: "\"9c80e68ad458a78920d94b9a\"", bytes: include_bytes!("assets/index-CDPqp6ba.css") },
    File { path: "assets/index-DKB079kj.js", kind: "text/javascript; charset=utf-8", etag: "\"6bdab4c00e03f02ebbdaf20d\"", bytes: include_bytes!("assets/index-DKB079kj.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"5f85690a6425b93013c6a2d2\"", bytes: include_bytes!("index.html") },
]
