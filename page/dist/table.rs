&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-BmsVBU-Z.css", kind: "text/css; charset=utf-8", etag: "\"728f328acf3a81e88be0e71b\"", bytes: include_bytes!("assets/index-BmsVBU-Z.css") },
    File { path: "assets/index-CFthNgB8.js", kind: "text/javascript; charset=utf-8", etag: "\"1d10e6ff1c3729dae837ee87\"", bytes: include_bytes!("assets/index-CFthNgB8.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"9c12fea2c6be79e5c9e50621\"", bytes: include_bytes!("index.html") },
]
