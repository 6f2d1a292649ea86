#include "shared/config/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "shared/config/limits.h"
#include "shared/config/units.h"

namespace wsync::config {
namespace {

std::string refusal(std::string_view text) {
  const auto entries = parse_document(text, "f");
  if (entries) return "accepted";
  EXPECT_EQ(entries.error().code(), ErrorCode::kInvalidInput);
  return entries.error().message();
}

TEST(Document, FlattensMapsAndKeepsLines) {
  const auto entries = parse_document("a: 1\nb:\n  # why\n  c: 'two words'\n  d: {e: x}\n", "f");
  const std::vector<Entry> expected = {{.key = "a", .value = "1", .where = "f:1"},
                                       {.key = "b.c", .value = "two words", .where = "f:4"},
                                       {.key = "b.d.e", .value = "x", .where = "f:5"}};
  EXPECT_EQ(entries.value(), expected);
  EXPECT_EQ(parse_document("a: 1\nb: {}\nc: {d: {}}\n", "f").value(),
            (std::vector<Entry>{{.key = "a", .value = "1", .where = "f:1"},
                                {.key = "b", .value = "", .where = "f:2", .section = true},
                                {.key = "c.d", .value = "", .where = "f:3", .section = true}}));
  EXPECT_TRUE(parse_document("", "f").value().empty());
  EXPECT_TRUE(parse_document("{}", "f").value().empty());
  EXPECT_TRUE(parse_document("# nothing\n", "f").value().empty());
  EXPECT_TRUE(parse_document("---\n", "f").value().empty());
}

TEST(Document, RefusesWhatAConfigHasNoUseFor) {
  EXPECT_EQ(refusal("a: 1\na: 2\n"), "f:2: 'a' is given twice; keep one of the two");
  EXPECT_EQ(refusal("a: {b: 1}\na: {c: 1}\n"), "f:2: 'a' is given twice; keep one of the two");
  EXPECT_EQ(refusal("a: [1, 2]\n"), "f:1: 'a': expected one value, found a list");
  EXPECT_EQ(refusal("- a\n"), "f:1: expected 'key: value' lines, found a list");
  EXPECT_EQ(refusal("hello"), "f:1: expected 'key: value' lines, found a single value");
  EXPECT_EQ(refusal("a:\nb: 1\n"), "f:1: 'a' has no value; write one, or leave the key out");
  EXPECT_EQ(refusal("a: &x 1\n"), "f:1: an anchor (&name) is not allowed");
  EXPECT_EQ(refusal("a: &x {b: 1}\nc: *x\n"), "f:1: an anchor (&name) is not allowed");
  EXPECT_EQ(refusal("a: !!int 1\n"), "f:1: a tag (tag:yaml.org,2002:int) is not allowed");
  EXPECT_EQ(refusal("A b: 1\n"), "f:1: a key must be made of a-z, 0-9 and _");
  EXPECT_EQ(refusal("a: 1\n---\nb: 2\n"),
            "f: more than one YAML document; a configuration file has exactly one");
  EXPECT_EQ(refusal("? {a: 1}\n: 2\n"), "f:1: a key must be a plain word");
  EXPECT_TRUE(refusal("a: 1\n b: 2\n c\n").starts_with("f:2: not YAML: "))
      << refusal("a: 1\n b: 2\n c\n");
  EXPECT_EQ(refusal("a: \"open\nb: 1\n"),
            "f:1: 'a': the quotation mark of its value is not closed");
  EXPECT_EQ(refusal("b: 1\na: 'open"), "f:2: 'a': the quotation mark of its value is not closed");
}

TEST(Document, AListIsTakenWhereAKeyMayHaveOne) {
  const auto value = [](std::string_view text) {
    const auto entries = parse_document(text, "f", {"a.b"});
    if (!entries) return entries.error().message();
    return entries->size() == 1 ? entries->front().value : "not one entry";
  };
  EXPECT_EQ(value("a: {b: [0, 1]}\n"), "0, 1");
  EXPECT_EQ(value("a:\n  b:\n    - x\n    - y\n"), "x, y");
  EXPECT_EQ(value("a: {b: []}\n"), "[]");
  EXPECT_EQ(value("a: {b: one}\n"), "one");
  EXPECT_EQ(value("a: {c: [0]}\n"),
            "f:1: 'a.c': expected one value, found a list; only a.b takes a list");
  EXPECT_EQ(value("a: {b: [[0]]}\n"), "f:1: 'a.b': a list inside a list");
  EXPECT_EQ(value("a: {b: [{c: 1}]}\n"), "f:1: 'a.b': a section inside a list");
  EXPECT_EQ(value("a: {b: [~]}\n"), "f:1: 'a.b' has no value; write one, or leave the key out");
  EXPECT_EQ(value("a: {b: [0, &x 1]}\n"), "f:1: an anchor (&name) is not allowed");
}

TEST(Document, BoundsDepthAndSize) {
  std::string deep;
  for (std::uint64_t i = 0; i < kConfigDepthMax; ++i) deep += "{a: ";
  EXPECT_EQ(refusal(deep + "1" + std::string(kConfigDepthMax, '}')), "accepted");
  EXPECT_EQ(refusal("{a: " + deep + "1" + std::string(kConfigDepthMax + 1, '}')),
            "f:1: nested deeper than 8 levels");
  EXPECT_EQ(refusal(std::string(kConfigBytesMax + 1, '#')),
            "f: 262145 bytes; a configuration file has at most 262144");
}

TEST(Units, SizesAndDurations) {
  EXPECT_EQ(parse_size("64MiB").value(), 64U << 20U);
  EXPECT_EQ(parse_size("3GB").value(), 3'000'000'000U);
  EXPECT_EQ(parse_size("0").value(), 0U);
  for (const char* bad : {"", "64", "MiB", "-1MiB", "1.5MiB", "1 MiB", "1mib", "99999999TiB",
                          "99999999999999999999B"})
    EXPECT_FALSE(parse_size(bad).has_value()) << bad;
  EXPECT_EQ(parse_duration("500ms").value().count(), 500);
  EXPECT_EQ(parse_duration("2h").value().count(), 7'200'000);
  for (const char* bad : {"", "5", "5 s", "-5s", "5min", "9223372036854775807h"})
    EXPECT_FALSE(parse_duration(bad).has_value()) << bad;
}

TEST(Units, PrintWhatTheyParse) {
  EXPECT_EQ(format_size(64U << 20U), "64MiB");
  EXPECT_EQ(format_size(1000), "1000B");
  EXPECT_EQ(format_size(0), "0B");
  EXPECT_EQ(format_duration(std::chrono::milliseconds(120'000)), "2m");
  EXPECT_EQ(format_duration(std::chrono::milliseconds(1'500)), "1500ms");
  for (const std::uint64_t size : {1ULL, 1024ULL, 1536ULL, 3ULL << 30U})
    EXPECT_EQ(parse_size(format_size(size)).value(), size);
}

TEST(Units, NearestName) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("cuont", "count"), 1U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  const std::vector<std::string> names = {"run_dir", "state_dir", "name"};
  EXPECT_EQ(nearest_name("rundir", names), "run_dir");
  EXPECT_EQ(nearest_name("elephants", names), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'x'), names), "");
}

TEST(Units, KnownNamesEndARefusal) {
  EXPECT_EQ(known_names("hsot0", {"host0", "other"}),
            "; did you mean 'host0'? it knows host0, other");
  EXPECT_EQ(known_names("x", {"host0"}), "; it knows host0");
  EXPECT_EQ(known_names("x", {}), "; it knows none");
  std::set<std::string> many;
  for (int i = 10; i < 20; ++i) many.insert("host" + std::to_string(i));
  EXPECT_THAT(known_names("x", many), testing::EndsWith("host16, host17 and 2 more"));
}

}  // namespace
}  // namespace wsync::config
