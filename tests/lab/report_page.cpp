// Prints a report for tests/tools/report_in_browser.py.
#include <iostream>

#include "lab/some_report.h"
#include "tessera/lab/report.h"

int main() { std::cout << tessera::to_html(tessera::test::some_report()); }
