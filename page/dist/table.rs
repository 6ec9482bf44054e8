&[
    File { path: "assets/icon-BOu7zsHR.svg", kind: "image/svg+xml", etag: "\"7d9f16c255b41f327d26a586\"", bytes: include_bytes!("assets/icon-BOu7zsHR.svg") },
    File { path: "assets/index-BM26HNsz.js", kind: "text/javascript; charset=utf-8", etag: "\"ffdbc840e900b662a8b8cadd\"", bytes: include_bytes!("assets/index-BM26HNsz.js") },
    File { path: "assets/index-D-l2FDmf.css", kind: "text/css; charset=utf-8", etag: "\"3c3c47d5763b47d8af763810\"", bytes: include_bytes!("assets/index-D-l2FDmf.css") },
    File { path: "index.html", kind: "text/html; charset=utf-8", etag: "\"57224634ae7fa20283b8ff23\"", bytes: include_bytes!("index.html") },
]
