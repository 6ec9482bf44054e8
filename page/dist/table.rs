&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-BDkg39U2.js", kind: "text/javascript; charset=utf-8", etag: "\"46a1b1177efc37ddf1c5f3a8\"", bytes: include_bytes!("assets/index-BDkg39U2.js") },
    File { path: "assets/index-DUTD8qhi.css", kind: "text/css; charset=utf-8", etag: "\"5e1cdeaea55c3976928b3530\"", bytes: include_bytes!("assets/index-DUTD8qhi.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"3e29446a1d527f48bf1a6c49\"", bytes: include_bytes!("index.html") },
]
