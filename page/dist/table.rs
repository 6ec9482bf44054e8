&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-De8o6_On.css", kind: "text/css; charset=utf-8", etag: "\"186864c53ae2d16d08345948\"", bytes: include_bytes!("assets/index-De8o6_On.css") },
    File { path: "assets/index-Dp6pKU-d.js", kind: "text/javascript; charset=utf-8", etag: "\"6b4ea427eaa549ab177d2cd0\"", bytes: include_bytes!("assets/index-Dp6pKU-d.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"071164a5f277d1bb796b0a5f\"", bytes: include_bytes!("index.html") },
]
