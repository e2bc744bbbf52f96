#include "base/notes.hpp"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Notes, AreSeparatedAndLeaveOutEmptyOnes) {
  std::string notes;

  append_note(notes, "");
  append_note(notes, "first");
  append_note(notes, "");
  append_note(notes, "second");

  EXPECT_EQ(notes, "first; second");
}

}  // namespace
}  // namespace penstock
