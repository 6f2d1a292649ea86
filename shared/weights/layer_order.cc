#include "shared/weights/layer_order.h"

#include <algorithm>
#include <array>

namespace wsync {
namespace {

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Removes the digits at the front of `text` and returns them without leading zeros.
std::string_view take_number(std::string_view& text) noexcept {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::size_t begin = 0;
  while (begin + 1 < end && text[begin] == '0') ++begin;
  const std::string_view number = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return number;
}

bool is_number(std::string_view text) noexcept {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

template <std::size_t N>
bool one_of(std::string_view text, const std::array<std::string_view, N>& words) noexcept {
  return std::find(words.begin(), words.end(), text) != words.end();
}

constexpr std::array<std::string_view, 8> kHeadWords{
    "lm_head", "embed_out", "output", "output_layer", "head", "score", "classifier", "lm_heads"};
constexpr std::array<std::string_view, 2> kEmbeddingWords{"wte", "wpe"};
constexpr std::array<std::string_view, 2> kNormWords{"ln_f", "ln_final"};

bool contains(std::string_view text, std::string_view part) noexcept {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::weak_ordering natural_compare(std::string_view a, std::string_view b) noexcept {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() <=> y.size();
      if (const int order = x.compare(y); order != 0) return order <=> 0;
    } else {
      const auto x = static_cast<unsigned char>(a.front());
      const auto y = static_cast<unsigned char>(b.front());
      if (x != y) return x <=> y;
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() <=> b.size();
}

LayerKey layer_key(std::string_view name) noexcept {
  using Part = LayerKey::Part;
  bool head = false;
  bool embedding = false;
  bool norm = false;
  std::size_t begin = 0;
  std::string_view number;
  std::string_view stack;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (is_number(word)) {
      stack = name.substr(0, begin);
      number = word;
      break;
    }
    head |= one_of(word, kHeadWords);
    embedding |= one_of(word, kEmbeddingWords) || contains(word, "embed");
    norm |= one_of(word, kNormWords) || contains(word, "norm");
    begin = end + 1;
  }
  if (head) return {.part = Part::kHead};
  if (embedding) return {.part = Part::kEmbedding};
  if (!number.empty()) return {.part = Part::kLayer, .stack = stack, .number = number};
  if (norm) return {.part = Part::kFinalNorm};
  return {.part = Part::kOther};
}

std::weak_ordering compare_layers(const LayerKey& a, const LayerKey& b) noexcept {
  if (a.part != b.part) return a.part <=> b.part;
  if (const auto order = natural_compare(a.stack, b.stack); order != 0) return order;
  return natural_compare(a.number, b.number);
}

}  // namespace wsync
