"""
The second wall only holds for a role that cannot climb over it: the application refuses to run as any other.
"""

from sqlalchemy import Engine, text

POWERS = text(
    """
    SELECT
      coalesce(bool_or(r.rolsuper), false) AS superuser,
      coalesce(bool_or(r.rolbypassrls), false) AS bypass,
      EXISTS (
        SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND pg_has_role(session_user, c.relowner, 'MEMBER')
      ) AS owner,
      EXISTS (
        SELECT 1 FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
      ) AS inert
    FROM pg_roles r WHERE pg_has_role(session_user, r.oid, 'MEMBER')
    """
)
WORDS = {
    "superuser": "it is a superuser or may become one",
    "bypass": "it bypasses row-level security or may become a role that does",
    "owner": "it owns tables or belongs to their owner",
}


class PowerfulRole(RuntimeError):
    """
    The database role could see past row-level security.
    """


def refuse_powerful_role(engine: Engine) -> None:
    """
    Returns when row-level security holds for the engine's role: neither superuser, nor owner, nor BYPASSRLS, itself or through
    membership, and no policy is switched off. Raises PowerfulRole saying what is wrong.
    """
    with engine.connect() as connection:
        role = connection.execute(text("SELECT session_user")).scalar_one()
        powers = connection.execute(POWERS).mappings().one()
    reasons = [words for power, words in WORDS.items() if powers[power]]
    if powers["inert"]:
        reasons.append("some tables have policies that are not enabled and forced")
    if reasons:
        raise PowerfulRole(
            f"Refusing to run as database role {role!r}: {', and '.join(reasons)}. "
            "Connect as the application's own role; `controlplane migrate` creates it."
        )
