&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-BAl-izM7.js", kind: "text/javascript; charset=utf-8", etag: "\"61ccb3f7553e57173b0245d8\"", bytes: include_bytes!("assets/index-BAl-izM7.js") },
    File { path: "assets/index-JCLxSAR8.css", kind: "text/css; charset=utf-8", etag: "\"c1d3f241f44906be43e873fa\"", bytes: include_bytes!("assets/index-JCLxSAR8.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"83b81bb8cf1fec8fd8d67e1b\"", bytes: include_bytes!("index.html") },
]
