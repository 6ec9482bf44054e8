&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-Dopk0wFD.js", kind: "text/javascript; charset=utf-8", etag: "\"8b3c9a265d90d35346c42104\"", bytes: include_bytes!("assets/index-Dopk0wFD.js") },
    File { path: "assets/index-Dxi7Q0Oy.css", kind: "text/css; charset=utf-8", etag: "\"3bb8d8927dd16e78768c8182\"", bytes: include_bytes!("assets/index-Dxi7Q0Oy.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"6ec25a2459d6d93e829244fe\"", bytes: include_bytes!("index.html") },
]
