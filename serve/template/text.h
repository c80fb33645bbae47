// Python's functions on texts that filters and methods share. All texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::jinja {

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
/// str.title(): a letter after what is none is upper case. The filter `title` differs:
/// begin_words().
std::string title(std::string_view text);
std::string begin_words(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

/// str.splitlines(keepends)
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
/// str.split(): at white space, at most `most` times (below 0: any number), from the right if so
/// asked.
std::vector<std::string_view> split_words(std::string_view text, int64_t most, bool from_right);
/// str.split(separator); the separator is not empty.
std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most,
                                    bool from_right);
/// Like text.find() and text.rfind(), in time that is linear in the text whatever is wanted:
/// templates are not trusted.
size_t find(std::string_view text, std::string_view wanted, size_t from = 0);
size_t find_last(std::string_view text, std::string_view wanted);

/// The first `most` (below 0: all) places; between all characters where `old` is empty.
std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t most);

}  // namespace weft::jinja
