# HOCCL_CHECK_JANSSON: jansson 2.13 or newer (Debian: libjansson-dev). Linked statically where it can be, so that a
# built program runs on machines without it.
AC_DEFUN([HOCCL_CHECK_JANSSON], [
  PKG_CHECK_MODULES([JANSSON], [jansson >= 2.13])
  hoccl_save_LIBS=$LIBS hoccl_save_CPPFLAGS=$CPPFLAGS
  LIBS="-l:libjansson.a $LIBS" CPPFLAGS="$CPPFLAGS $JANSSON_CFLAGS"
  AC_MSG_CHECKING([for a static jansson])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <jansson.h>]], [[return !json_object();]])],
    [AC_MSG_RESULT([yes])
     JANSSON_LIBS=-l:libjansson.a],
    [AC_MSG_RESULT([no])])
  LIBS=$hoccl_save_LIBS CPPFLAGS=$hoccl_save_CPPFLAGS
])
