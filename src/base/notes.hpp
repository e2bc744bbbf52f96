#pragma once

#include <string>
#include <string_view>

namespace penstock {

/// Appends `note` to `notes`, a line in which notes are separated by "; ". An empty note adds nothing.
inline void append_note(std::string& notes, std::string_view note) {
  if (note.empty()) return;
  if (!notes.empty()) notes += "; ";
  notes += note;
}

}  // namespace penstock
