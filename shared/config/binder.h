// Binds keys to the fields of a config struct. Each key is declared once, with its type and range.
// A key that was given but never declared is an unknown key.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/config/document.h"

namespace wsync::config {

template <class T>
struct Range {
  T min;
  T max;
};

// Returns the environment variable of a key: "WSYNC_A_B" for the key a.b.
[[nodiscard]] std::string environment_name(std::string_view key);

class Binder {
 public:
  // Values come from three sources. `set` holds the "a.b=c" texts of --set and overrides
  // `environment`. `environment` maps "WSYNC_A_B" to its value and overrides `file`. `file` holds
  // the entries of the YAML text. `set_name`: what the user has written the texts of `set` to.
  Binder(std::vector<Entry> file, const std::vector<std::string>& set,
         const std::map<std::string, std::string>& environment,
         const std::string& set_name = "--set");

  // Adds the prefix "name." to every key during its lifetime. Wrong values in a disabled section
  // are not errors.
  class Section {
   public:
    Section(Binder& binder, std::string_view name, bool on);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Binder& binder_;
    std::size_t outer_prefix_;  // length of the outer prefix
    bool outer_on_;
  };

  // Each function leaves `out` at its default if the key is not given. The first error is kept.
  void text(std::string_view key, std::string& out);
  void flag(std::string_view key, bool& out);
  void size(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range);
  // Like size(), but "auto" yields 0.
  void size_or_auto(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range);
  void duration(std::string_view key, std::chrono::milliseconds& out,
                Range<std::chrono::milliseconds> range);
  void count(std::string_view key, std::uint32_t& out, Range<std::uint32_t> range);
  // Like count(), but "auto" yields std::nullopt.
  void count_or_auto(std::string_view key, std::optional<std::uint32_t>& out,
                     Range<std::uint32_t> range);
  void number(std::string_view key, double& out, Range<double> range);
  // Reads paths that are separated by ':'.
  void paths(std::string_view key, std::vector<std::string>& out);
  // Reads words that are separated by commas or blanks.
  void words(std::string_view key, std::vector<std::string>& out);
  template <class E>
  void choice(std::string_view key, E& out,
              std::initializer_list<std::pair<std::string_view, std::type_identity_t<E>>> choices) {
    const std::optional<Entry> entry = take(key);
    if (!entry) return;
    std::string names;
    for (const auto& [name, value] : choices) {
      if (entry->value == name) {
        out = value;
        return;
      }
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    refuse(*entry, fmt::format("expected one of {}, found '{}'", names, entry->value));
  }
  // Returns the given value of `key`, if any. The caller parses it and calls refuse() if it is
  // wrong.
  [[nodiscard]] std::optional<Entry> take(std::string_view key);
  // Returns true if the section itself ("name: {}") or any of its keys is given.
  [[nodiscard]] bool has_section(std::string_view name) const;
  void refuse(const Entry& entry, std::string_view sentence);
  // Records an error about the value of a key that is already bound, whatever its source.
  void refuse(std::string_view key, std::string_view sentence);

  // Returns the first error. Unknown keys (reported with the nearest known key) come before wrong
  // values.
  [[nodiscard]] Result<> finish() const;
  // Returns every key declared so far, in order of declaration.
  [[nodiscard]] const std::vector<std::string>& keys() const noexcept { return keys_; }

 private:
  void split(std::string_view key, std::string_view separators, std::vector<std::string>& out);
  [[nodiscard]] bool known(const Entry& entry) const;

  std::map<std::string, Entry, std::less<>> given_;  // --set overrides the file
  std::vector<Entry> order_;                         // all given entries, to find unknown keys
  std::map<std::string, std::string> environment_;
  std::vector<std::string> keys_;
  std::vector<std::string> from_set_;
  std::string prefix_;
  bool on_ = true;  // whether the current section is enabled
  std::optional<Error> error_;
};

}  // namespace wsync::config
