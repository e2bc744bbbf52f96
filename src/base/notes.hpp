#pragma once

#include <penstock/base/result.hpp>

#include <string>
#include <string_view>

namespace penstock {

/// Appends `note` to `notes`, a line in which notes are separated by "; ". An empty note adds nothing.
inline void append_note(std::string& notes, std::string_view note) {
  if (note.empty()) return;
  if (!notes.empty()) notes += "; ";
  notes += note;
}

/// Of an error's message, for a list of several.
inline std::string first_line(const Error& error) {
  const std::string text = error.message();
  return text.substr(0, text.find('\n'));
}

}  // namespace penstock
