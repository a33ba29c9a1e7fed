#pragma once

namespace tessera {

/// The page's CSS. Colours are Okabe and Ito's, which colour-blind readers tell apart, a little
/// lighter on a dark page; areas have an edge, since some are pale.
inline constexpr const char* kReportStyle = R"(
:root{color-scheme:light dark;--paper:#fff;--card:#f7f8fa;--ink:#1a1d21;--soft:#555c66;
--grid:#d5d9df;--line:#c4c9d1;--edge:#00000066;--link:#0059a6;--c0:#0072b2;--c1:#56b4e9;--c2:#d55e00;
--c3:#e69f00;--c4:#009e73;--c5:#cc79a7;--c6:#8a8f98;--c7:#f0e442;--on:#fff}
@media (prefers-color-scheme:dark){:root{--paper:#111418;--card:#191d23;--ink:#e8eaed;--soft:#a9b0ba;
--grid:#343a43;--line:#3d444e;--edge:#ffffff59;--link:#7cc0ff;--c0:#2d8fd0;--c1:#7cc8f5;--c2:#ea7526;
--c3:#f0b030;--c4:#1fb88c;--c5:#dc93ba;--c6:#8d949e;--c7:#f0e442;--on:#000}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header,footer{max-width:82rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25;margin:1.2rem 0 .3rem}
h2{font-size:1.1rem;margin:0 0 .3rem}
p{margin:.2rem 0 .7rem;max-width:75ch}
header p,figcaption p{color:var(--soft)}
figcaption p{font-size:.9rem;line-height:1.45}
a{color:var(--link)}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.5rem 0 1rem}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:1rem}
figure,section{margin:0;padding:1rem;background:var(--card);border:1px solid var(--line);
border-radius:8px;min-width:0}
section{margin:1rem 0}
#timeline{grid-column:1/-1}
svg{display:block;overflow:visible}
svg text{font-size:13px;fill:var(--ink)}
svg text.label{font-weight:600}
svg text.value,svg text.tick,svg text.number{font-variant-numeric:tabular-nums}
svg text.tick{font-size:11.5px;fill:var(--soft)}
svg text.number{font-size:12px;font-weight:600}
svg text.label,svg text.value,svg text.number,svg text.tick{paint-order:stroke;stroke:var(--card);
stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}.lane{fill:var(--grid);opacity:.5}
rect,path{stroke:var(--edge);stroke-width:.75}.lane{stroke:none}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}
.c4{fill:var(--c4)}.c5{fill:var(--c5)}.c6{fill:var(--c6)}.c7{fill:var(--c7)}
.message{fill:var(--soft)}
svg text.in-block{font-size:8px;letter-spacing:-.3px;fill:var(--on);pointer-events:none;
font-variant-numeric:tabular-nums}
svg text.on-light{fill:#000}
@media (max-width:60rem){svg text.in-block{display:none}}
.c0.v1{fill:color-mix(in srgb,var(--c0),#fff 40%)}.c0.v2{fill:color-mix(in srgb,var(--c0),#fff 65%)}
.c0.v3{fill:color-mix(in srgb,var(--c0),#fff 82%)}
.c2.v1{fill:color-mix(in srgb,var(--c2),#fff 40%)}.c2.v2{fill:color-mix(in srgb,var(--c2),#fff 65%)}
.c2.v3{fill:color-mix(in srgb,var(--c2),#fff 82%)}
.c7.v1{fill:color-mix(in srgb,var(--c7),#fff 40%)}.c7.v2{fill:color-mix(in srgb,var(--c7),#fff 65%)}
.c7.v3{fill:color-mix(in srgb,var(--c7),#fff 82%)}
.hidden{fill:var(--grid)}
.predicted{fill:none;stroke:var(--ink);stroke-width:2}
.whisker{stroke:var(--ink);stroke-width:2}
.simulated{fill:var(--paper);stroke:var(--ink);stroke-width:2}
.other-point{fill:var(--card);stroke:var(--soft);stroke-width:1.5}
.front{fill:none;stroke:var(--c0);stroke-width:1.5;stroke-dasharray:4 3}
.curve{fill:none;stroke-width:2.5;stroke-linejoin:round}
.curve.c0{stroke:var(--c0)}.curve.c1{stroke:var(--c1)}.curve.c2{stroke:var(--c2)}
.curve.c3{stroke:var(--c3)}.curve.c4{stroke:var(--c4)}.curve.c5{stroke:var(--c5)}
.curve.c6{stroke:var(--c6)}.curve.c7{stroke:var(--c7)}
.legend,.key{list-style:none;padding:0;margin:.2rem 0 .6rem;font-size:.85rem}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem}
.legend li{display:flex;gap:.35rem;align-items:center;overflow-wrap:anywhere}
.legend svg{flex:none}
.key{margin-top:.6rem}.key li{overflow-wrap:anywhere}
.empty{font-style:italic}
details{margin-top:.7rem}summary{cursor:pointer;font-size:.9rem;color:var(--link)}
.scroll{overflow:auto;max-height:28rem}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:.3rem 0}
th,td{text-align:left;padding:.2rem .9rem .2rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{font-weight:600;white-space:nowrap}
pre{overflow-x:auto;padding:.7rem;background:var(--paper);border:1px solid var(--line);
border-radius:6px;font-size:.85rem;white-space:pre-wrap;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.85rem;padding-bottom:2rem}
@media print{figure,section{break-inside:avoid}}
)";

}  // namespace tessera
