#include <penstock/base/result.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

namespace penstock {
namespace {

TEST(Error, SaysOperationObjectOffsetWantedGotAndCause) {
  Error error = Error::from_errno("BlockFile::read", EIO)
                    .object("/mnt/nvme0/swap")
                    .at(FileOffset(8192))
                    .wanted(4_KiB)
                    .got(512_B);

  EXPECT_EQ(error.message(),
            "input/output error: /mnt/nvme0/swap at offset 8192, wanted 4.0 KiB (4096 B), got 512 B: "
            "Input/output error [BlockFile::read]");
}

TEST(Error, PutsPlaceNotesAndAdviceOnLinesOfTheirOwn) {
  Error error = Error(ErrorCode::no_space, "create")
                    .reason("cannot start: the swap files need 41.3 GiB")
                    .where("offload_optimizer.nvme_path, ds_config.json line 14")
                    .note("needed  optimizer tiles 37.8 GiB")
                    .advice("add a second path");

  EXPECT_EQ(error.message(),
            "cannot start: the swap files need 41.3 GiB [create]\n"
            "  where   offload_optimizer.nvme_path, ds_config.json line 14\n"
            "  needed  optimizer tiles 37.8 GiB\n"
            "  try     add a second path");
}

TEST(Error, ShowsCharactersThatATerminalWouldObeyByTheirNumbers) {
  const Error error = Error(ErrorCode::not_found, "find")
                          .object("a\x1b[2Jb\nc")
                          .got(std::string("\0\t\x7f", 3))
                          .note("cause   \x07\n  of it \xc3\xa9");

  EXPECT_EQ(error.message(),
            "not found: a\\x1b[2Jb\\x0ac, got \\x00\t\\x7f [find]\n  cause   \\x07\n  of it \xc3\xa9");
  EXPECT_EQ(error.fields().object, "a\x1b[2Jb\nc");  // as it was given
  const auto shown = [](const char* object) { return Error(ErrorCode::io, "f").object(object).message(); };
  EXPECT_EQ(shown("\xc2\x9b"
                  "2J \xc2\xa0 \xc3\x9b \xc2"),
            "input/output error: \\x9b"
            "2J \xc2\xa0 \xc3\x9b \xc2 [f]");
}

TEST(Error, GivesItsFieldsOneByOne) {
  const Error::Fields none = Error(ErrorCode::io, "read").fields();
  const Error::Fields fields = Error(ErrorCode::io, "read")
                                   .object("a")
                                   .reason("why")
                                   .at(FileOffset(0))
                                   .wanted(4_KiB)
                                   .got("nothing")
                                   .where("line 3")
                                   .advice("repeat")
                                   .note("one")
                                   .note("two")
                                   .fields();

  EXPECT_EQ(none.object + none.reason + none.wanted + none.got + none.where + none.advice, "");
  EXPECT_TRUE(none.notes.empty());
  EXPECT_FALSE(none.offset);
  EXPECT_EQ(fields.object, "a");
  EXPECT_EQ(fields.reason, "why");
  EXPECT_EQ(fields.wanted, "4.0 KiB (4096 B)");
  EXPECT_EQ(fields.got, "nothing");
  EXPECT_EQ(fields.where, "line 3");
  EXPECT_EQ(fields.advice, "repeat");
  EXPECT_EQ(fields.notes, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(fields.offset, FileOffset(0));
}

TEST(Error, KeepsItsTextWhenACopyIsExtended) {
  Error first = Error(ErrorCode::io, "read").object("a");
  Error second = first;

  second = std::move(second).note("only here");

  EXPECT_EQ(first.message(), "input/output error: a [read]");
  EXPECT_EQ(second.message(), "input/output error: a [read]\n  only here");
}

TEST(Error, MapsErrnoToACause) {
  EXPECT_EQ(Error::from_errno("x", ENOSPC).code(), ErrorCode::no_space);
  EXPECT_EQ(Error::from_errno("x", EPERM).code(), ErrorCode::permission);
  EXPECT_EQ(Error::from_errno("x", ENOSYS).code(), ErrorCode::unsupported);
  EXPECT_EQ(Error::from_errno("x", EBADF).code(), ErrorCode::io);
  EXPECT_EQ(Error::from_errno("x", ENAMETOOLONG).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(Error::from_errno("x", EFAULT).code(), ErrorCode::invalid_argument);
}

Result<int> half(int n) {
  if (n % 2 != 0) return Error::invalid_argument("half").got(static_cast<unsigned>(n));
  return n / 2;
}
Result<int> quarter(int n) {
  PENSTOCK_TRY(half(n));
  return half(n / 2);
}

Result<std::unique_ptr<int>> sum_of_halves(int a, int b) {
  PENSTOCK_TRY_ASSIGN(const int first, half(a));
  int second = 0;
  PENSTOCK_TRY_ASSIGN(second, half(b));
  PENSTOCK_TRY_ASSIGN(auto sum, Result<std::unique_ptr<int>>(std::make_unique<int>(first + second)));
  return sum;
}

TEST(Result, HoldsAValueOrACause) {
  EXPECT_EQ(quarter(8).value(), 2);
  ASSERT_FALSE(quarter(3));
  EXPECT_EQ(quarter(6).error().message(), "invalid argument, got 3 [half]");
}

TEST(Result, IsUnwrappedOrItsCauseReturned) {
  EXPECT_EQ(**sum_of_halves(8, 6), 7);
  EXPECT_EQ(sum_of_halves(5, 6).error().message(), "invalid argument, got 5 [half]");
  EXPECT_EQ(sum_of_halves(8, 9).error().message(), "invalid argument, got 9 [half]");
}

TEST(Result, ThrowsItsCauseForCallersWhoAskForTheValue) {
  EXPECT_THROW(quarter(3).value(), tl::bad_expected_access<Error>);
  EXPECT_THROW(Result<void>(Error::unsupported("x")).value(), tl::bad_expected_access<Error>);
  EXPECT_NO_THROW(ok().value());
  try {
    quarter(3).value();
  } catch (const std::exception& thrown) {
    EXPECT_EQ(thrown.what(), quarter(3).error().message());
  }
}

TEST(Error, NamesTheMostFrequentCauses) {
  EXPECT_EQ(Error::invalid_config("x").code(), ErrorCode::invalid_config);
  EXPECT_EQ(Error::would_block("x").code(), ErrorCode::would_block);
}

}  // namespace
}  // namespace penstock
