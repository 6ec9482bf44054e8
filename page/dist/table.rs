&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-DWPgPL_M.js", kind: "text/javascript; charset=utf-8", etag: "\"7aefb4c9e5896fa8c3037820\"", bytes: include_bytes!("assets/index-DWPgPL_M.js") },
    File { path: "assets/index-Dxi7Q0Oy.css", kind: "text/css; charset=utf-8", etag: "\"3bb8d8927dd16e78768c8182\"", bytes: include_bytes!("assets/index-Dxi7Q0Oy.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"151b9b817ff1a392e2a26d16\"", bytes: include_bytes!("index.html") },
]
