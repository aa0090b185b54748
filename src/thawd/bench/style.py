"""The style sheet of reports. Colours can be told apart by people who do not see red and green as others do."""

STYLE = """
:root{--page:#fbfbfa;--ink:#1d2126;--soft:#5c6570;--line:#d9dde2;--grid:#e8ebee;--card:#fff;--bad:#b3261e;
--cold:#c8501e;--fork:#b98a00;--thaw:#1f6fc4;--warm:#8b95a1;--provisioned:#1c8a5b;--other:#5b6ea8;
--run1:#1f6fc4;--run2:#c8501e;--run3:#1c8a5b;--run4:#8a4fb0;--run5:#b98a00;--run6:#4b5563;
--spawn:#7fa8d6;--prepare:#1f4e8c;--handler:#e0a030;--rest:#c9ced5;--requests:#c3d4ea;--environments:#c8501e}
@media(prefers-color-scheme:dark){:root{--page:#14171b;--ink:#e6e9ed;--soft:#9aa4b0;--line:#343b44;--grid:#262c33;
--card:#1a1e23;--bad:#ff8a80;--cold:#f0814e;--fork:#e2b93b;--thaw:#62a8f5;--warm:#77818d;--provisioned:#4cc38a;
--other:#93a5e0;--run1:#62a8f5;--run2:#f0814e;--run3:#4cc38a;--run4:#c08be0;--run5:#e2b93b;--run6:#b6bec8;
--spawn:#8fb8e6;--prepare:#3f7fd0;--handler:#e6b04a;--rest:#4a525c;--requests:#2c4a6e;--environments:#f0814e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif}
main{max-width:940px;margin:0 auto;padding:28px 16px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 4px}h3{font-size:14px;margin:14px 0 0}
p{margin:4px 0 10px}.load{font-size:17px}.told{color:var(--soft);font-size:14px;max-width:58em}
a{color:var(--thaw)}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 20px 12px;margin:16px 0}
.wide{overflow-x:auto}.wide+.wide{margin-top:14px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px;white-space:normal;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;font-weight:600}
td:last-child:not(:nth-child(n+5)){white-space:normal;text-align:left;overflow-wrap:anywhere}
th:last-child:not(:nth-child(n+5)){text-align:left}
.bad{color:var(--bad);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;margin:8px 0 2px}
.legend span{display:inline-flex;align-items:center;gap:6px}
.legend i{width:12px;height:12px;border-radius:3px;background:currentColor;flex:none}
details{margin:8px 0 4px;font-size:14px}summary{cursor:pointer;color:var(--soft)}
svg{display:block;width:100%;height:auto;margin:2px 0 4px;font-size:12px}
svg text{fill:var(--soft)}svg .name{fill:var(--ink);font-size:13px}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--line);fill:none}
.level{stroke:var(--soft);stroke-dasharray:4 4;fill:none}.level+.label{fill:var(--ink);paint-order:stroke;
stroke:var(--card);stroke-width:3px}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.area{fill:currentColor;stroke:none}.dots{fill:none;stroke:currentColor;stroke-width:5;stroke-linecap:round;
stroke-opacity:.75}.few{stroke-width:9}.crosses{fill:none;stroke:currentColor;stroke-width:1.6}rect{fill:currentColor}
.k-cold{color:var(--cold)}.k-fork{color:var(--fork)}.k-thaw{color:var(--thaw)}.k-warm{color:var(--warm)}
.k-provisioned{color:var(--provisioned)}.k-other{color:var(--other)}.k-wrong{color:var(--bad)}
.k-run1{color:var(--run1)}.k-run2{color:var(--run2)}.k-run3{color:var(--run3)}.k-run4{color:var(--run4)}
.k-run5{color:var(--run5)}.k-run6{color:var(--run6)}
.k-part-spawn{color:var(--spawn)}.k-part-prepare{color:var(--prepare)}.k-part-handler{color:var(--handler)}
.k-part-rest{color:var(--rest)}.k-requests{color:var(--requests)}.k-environments{color:var(--environments)}
"""
