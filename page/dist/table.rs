&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-CDPqp6ba.css", kind: "text/css; charset=utf-8", etag: "\"9c80e68ad458a78920d94b9a\"", bytes: include_bytes!("assets/index-CDPqp6ba.css") },
    File { path: "assets/index-CTiKp1kA.js", kind: "text/javascript; charset=utf-8", etag: "\"ee3734ab74bf325b11f65af6\"", bytes: include_bytes!("assets/index-CTiKp1kA.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"e1f8c5e573b17767df8af93a\"", bytes: include_bytes!("index.html") },
]
