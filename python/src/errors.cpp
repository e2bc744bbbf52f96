#include "errors.hpp"

#include <nanobind/stl/string.h>
#include <memory>

namespace penstock::python {

namespace {

[[noreturn]] void raise(penstock_code code, const std::string& message, const nb::dict& fields) {
  const nb::object exception =
      nb::module_::import_("penstock.errors").attr("exception_of")(code, message, **fields);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void check(penstock_error* returned) {
  if (returned == nullptr) return;
  const std::unique_ptr<penstock_error, void (*)(penstock_error*)> error(returned, penstock_error_free);
  nb::dict fields;
  const auto add = [&](const char* name, penstock_error_field field) {
    fields[name] = std::string(penstock_error_text(error.get(), field));
  };
  add("operation", PENSTOCK_ERROR_OPERATION);
  add("object", PENSTOCK_ERROR_OBJECT);
  add("reason", PENSTOCK_ERROR_REASON);
  add("wanted", PENSTOCK_ERROR_WANTED);
  add("got", PENSTOCK_ERROR_GOT);
  add("where", PENSTOCK_ERROR_WHERE);
  add("advice", PENSTOCK_ERROR_ADVICE);
  nb::list notes;
  for (std::size_t i = 0; const char* note = penstock_error_note(error.get(), i); ++i)
    notes.append(std::string(note));
  fields["notes"] = nb::tuple(notes);
  if (const std::int64_t offset = penstock_error_offset(error.get()); offset >= 0) fields["offset"] = offset;
  fields["os_error"] = penstock_error_os_error(error.get());
  raise(penstock_error_code(error.get()), penstock_error_message(error.get()), fields);
}

void refuse(const Refusal& refusal) {
  nb::dict fields;
  std::string message = refusal.reason + ": " + refusal.argument;
  const auto add = [&](const char* name, const char* label, const std::string& text) {
    fields[name] = text;
    if (!text.empty()) message += label + text;
  };
  add("wanted", ", wanted ", refusal.wanted);
  add("got", ", got ", refusal.got);
  message += std::string(" [") + refusal.function + "]";
  add("advice", "\n  try     ", refusal.advice);
  fields["operation"] = std::string(refusal.function);
  fields["object"] = std::string(refusal.argument);
  fields["reason"] = refusal.reason;
  raise(refusal.code, message, fields);
}

nb::list to_list(penstock_lines* lines) {
  const std::unique_ptr<penstock_lines, void (*)(penstock_lines*)> owned(lines, penstock_lines_free);
  nb::list texts;
  for (std::size_t i = 0; i < penstock_lines_count(lines); ++i)
    texts.append(std::string(penstock_lines_get(lines, i)));
  return texts;
}

}  // namespace penstock::python
