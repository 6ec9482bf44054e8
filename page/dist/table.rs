&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-DUTD8qhi.css", kind: "text/css; charset=utf-8", etag: "\"5e1cdeaea55c3976928b3530\"", bytes: include_bytes!("assets/index-DUTD8qhi.css") },
    File { path: "assets/index-HGRbTZsd.js", kind: "text/javascript; charset=utf-8", etag: "\"2a823661fa131b63c263af83\"", bytes: include_bytes!("assets/index-HGRbTZsd.js") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"dad0213aef732617d1bdb137\"", bytes: include_bytes!("index.html") },
]
