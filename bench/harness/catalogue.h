// Every suite of `wsync bench` and its cases: what each measures, in which unit, and its baseline.
// The suites use these texts in their results, and `wsync bench list` prints them. How to add a
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
  std::string_view what;  // a sentence about what it measures
  std::string_view unit;
  bool higher_is_better = false;
  std::string_view baseline;  // empty if there is none
};

struct SuiteText {
  std::string_view name;
  std::string_view command;   // command that runs it
  std::string_view question;  // question that it answers
  std::span<const CaseText> cases;
};

[[nodiscard]] std::span<const SuiteText> catalogue();

// Returns an empty result with the texts of a case. The suite and the case are in the catalogue.
// `variant` ("2 engines") follows the name after a comma. It may be empty.
[[nodiscard]] CaseResult case_of(std::string_view suite, std::string_view name,
                                 std::string_view variant, std::vector<double> samples);
// Sets the baseline under its name in the catalogue.
void set_baseline_of(std::string_view suite, std::string_view name, CaseResult& result,
                     std::vector<double> samples);

}  // namespace wsync::bench
