&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-D5oLUO3U.css", kind: "text/css; charset=utf-8", etag: "\"3e56c033fb5a079722cb8256\"", bytes: include_bytes!("assets/index-D5oLUO3U.css") },
    File { path: "assets/index-WfZGPEvB.js", kind: "text/javascript; charset=utf-8", etag: "\"a231b66be7851cf255db9f1f\"", bytes: include_bytes!("assets/index-WfZGPEvB.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"c6199e7789979b5361d72232\"", bytes: include_bytes!("index.html") },
]
