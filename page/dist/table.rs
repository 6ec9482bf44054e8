&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-CEXTCmKe.js", kind: "text/javascript; charset=utf-8", etag: "\"3e5ba5247db98039ae3e34f9\"", bytes: include_bytes!("assets/index-CEXTCmKe.js") },
    File { path: "assets/index-D-l2FDmf.css", kind: "text/css; charset=utf-8", etag: "\"3c3c47d5763b47d8af763810\"", bytes: include_bytes!("assets/index-D-l2FDmf.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"a8886797c6cf4d4237ce42dd\"", bytes: include_bytes!("index.html") },
]
