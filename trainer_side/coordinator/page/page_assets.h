// The three files of the page (page.html, page.css, page.js), embedded when the program was built.
// Thread: any.
#pragma once

#include <string_view>

namespace wsync::page {

[[nodiscard]] std::string_view page_html() noexcept;
[[nodiscard]] std::string_view page_css() noexcept;
[[nodiscard]] std::string_view page_js() noexcept;

}  // namespace wsync::page
