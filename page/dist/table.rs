&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-DUTD8qhi.css", kind: "text/css; charset=utf-8", etag: "\"5e1cdeaea55c3976928b3530\"", bytes: include_bytes!("assets/index-DUTD8qhi.css") },
    File { path: "assets/index-IPYP5MCe.js", kind: "text/javascript; charset=utf-8", etag: "\"7716ac9d117c1eaba73b4e1d\"", bytes: include_bytes!("assets/index-IPYP5MCe.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"31c2c0f6493a7ffc49231ead\"", bytes: include_bytes!("index.html") },
]
