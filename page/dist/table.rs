&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-CDPqp6ba.css", kind: "text/css; charset=utf-8", etag: "\"9c80e68ad458a78920d94b9a\"", bytes: include_bytes!("assets/index-CDPqp6ba.css") },
    File { path: "assets/index-CN5k0N1e.js", kind: "text/javascript; charset=utf-8", etag: "\"46a1b1177efc37ddf1c5f3a8\"", bytes: include_bytes!("assets/index-CN5k0N1e.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"d72b554617b3f22a5bb503f5\"", bytes: include_bytes!("index.html") },
]
