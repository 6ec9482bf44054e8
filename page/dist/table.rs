&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-DUTD8qhi.css", kind: "text/css; charset=utf-8", etag: "\"5e1cdeaea55c3976928b3530\"", bytes: include_bytes!("assets/index-DUTD8qhi.css") },
    File { path: "assets/index-_zk02O1F.js", kind: "text/javascript; charset=utf-8", etag: "\"b64b447f92853d12a9bfb65d\"", bytes: include_bytes!("assets/index-_zk02O1F.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"d328aba45518c5720d32ea0b\"", bytes: include_bytes!("index.html") },
]
