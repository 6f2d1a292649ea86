// Every suite of `wsync bench` and its cases: what each measures, in which unit, against what. The
// suites make their results from these texts, and `wsync bench list` prints them. How to add a
// suite: bench/README.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/result.h"

namespace wsync::bench {

struct CaseText {
  std::string_view name;
  std::string_view what;  // it measures: a sentence
  std::string_view unit;
  bool higher_is_better = false;
  std::string_view baseline;  // what it is compared with; empty: nothing
};

struct SuiteText {
  std::string_view name;
  std::string_view command;   // that runs it
  std::string_view question;  // that it answers
  std::span<const CaseText> cases;
};

[[nodiscard]] std::span<const SuiteText> catalogue();

// An empty result with the texts of a case; the suite and the case are in the catalogue. `variant`
// ("2 engines") follows the name after a comma; empty: none.
[[nodiscard]] CaseResult case_of(std::string_view suite, std::string_view name,
                                 std::string_view variant, std::vector<double> samples);
// Sets the baseline under the name that the catalogue gives it.
void set_baseline_of(std::string_view suite, std::string_view name, CaseResult& result,
                     std::vector<double> samples);

}  // namespace wsync::bench
