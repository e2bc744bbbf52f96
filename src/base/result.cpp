#include <penstock/base/result.hpp>

#include "base/control_character.hpp"

#include <cerrno>
#include <cstring>

namespace penstock {

BadResult::BadResult(Error error)
    : tl::bad_expected_access<Error>(std::move(error)), message_(this->error().message()) {}

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::invalid_config: return "invalid configuration";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::would_block: return "would block";
    case ErrorCode::budget_too_small: return "budget too small";
    case ErrorCode::no_space: return "no space";
    case ErrorCode::permission: return "permission denied";
    case ErrorCode::not_found: return "not found";
    case ErrorCode::already_exists: return "already exists";
    case ErrorCode::in_use: return "in use";
    case ErrorCode::io: return "input/output error";
    case ErrorCode::truncated: return "truncated";
    case ErrorCode::corrupted: return "corrupted";
    case ErrorCode::non_finite: return "non-finite value";
    case ErrorCode::deadline_exceeded: return "deadline exceeded";
    case ErrorCode::peer_failed: return "peer failed";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::failed_state: return "failed state";
  }
  return "unknown";
}

Error Error::from_errno(const char* operation, int errno_value) {
  const ErrorCode code = [&] {
    switch (errno_value) {
      case ENOSPC:
      case EDQUOT:
      case EFBIG: return ErrorCode::no_space;
      case EACCES:
      case EPERM:
      case EROFS: return ErrorCode::permission;
      case ENOENT:
      case ENOTDIR: return ErrorCode::not_found;
      case EEXIST: return ErrorCode::already_exists;
      case EINVAL:
      case EISDIR:
      case ENOTEMPTY:
      case ELOOP:
      case ENAMETOOLONG:
      case EFAULT:
      case EXDEV: return ErrorCode::invalid_argument;
      case EOPNOTSUPP:
      case ENOSYS: return ErrorCode::unsupported;
      default: return ErrorCode::io;
    }
  }();
  Error error(code, operation);
  error.os_error_ = errno_value;
  return error;
}

Error::Text& Error::text_() {
  // Copy on write: copies of an error share its text until one of them adds to it.
  if (!text_body_) {
    text_body_ = std::make_shared<Text>();
  } else if (text_body_.use_count() > 1) {
    text_body_ = std::make_shared<Text>(*text_body_);
  }
  return *text_body_;
}

std::string Error::format(const Quantity& quantity) {
  switch (quantity.unit) {
    case Unit::absent: return {};
    case Unit::none: return std::to_string(quantity.value);
    case Unit::elements: return to_string(ElementCount(quantity.value)) + " elements";
    case Unit::bytes: break;
  }
  return to_exact_string(ByteCount(quantity.value));
}

Error::Fields Error::fields() const {
  const Text none;
  const Text& text = text_body_ ? *text_body_ : none;
  Fields fields{.object = text.object,
                .reason = text.reason,
                .wanted = text.wanted.empty() ? format(wanted_) : text.wanted,
                .got = text.got.empty() ? format(got_) : text.got,
                .where = text.where,
                .advice = text.advice,
                .notes = text.notes,
                .offset = {}};
  if (offset_.unit != Unit::absent) fields.offset = FileOffset(offset_.value);
  return fields;
}

std::string Error::message() const {
  const Fields fields = this->fields();
  std::string out = fields.reason.empty() ? std::string(to_string(code_)) : fields.reason;
  if (!fields.object.empty()) out += ": " + escape_control_characters(fields.object);
  if (fields.offset) out += " at offset " + std::to_string(fields.offset->value());
  if (!fields.wanted.empty()) out += ", wanted " + fields.wanted;
  if (!fields.got.empty()) out += ", got " + escape_control_characters(fields.got);
  if (os_error_ != 0) out += ": " + std::string(std::strerror(os_error_));
  out += " [" + std::string(operation_) + "]";

  if (!fields.where.empty()) out += "\n  where   " + fields.where;
  for (const std::string& note : fields.notes) out += "\n  " + note;
  if (!fields.advice.empty()) out += "\n  try     " + fields.advice;
  return escape_control_characters(out, "\t\n");
}

}  // namespace penstock
